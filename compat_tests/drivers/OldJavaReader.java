// What OldJavaDriver asks of a consumer: there is none in 0.8.2, where this file is left out of the compilation.

import java.util.Collections;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

final class OldJavaReader {
    private OldJavaReader() {
    }

    static String answer(String address, String[] words) {
        switch (words[0]) {
            case "read": return read(address, words[1], Long.parseLong(words[2]), Integer.parseInt(words[3]));
            case "commit": return commit(address, words[1], words[2], Long.parseLong(words[3]));
            case "committed": return committed(address, words[1], words[2]);
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private static KafkaConsumer<String, String> consumer(String address, String group, TopicPartition place) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("group.id", group);
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        KafkaConsumer<String, String> consumer = new KafkaConsumer<String, String>(settings);
        consumer.assign(Collections.singletonList(place));
        return consumer;
    }

    private static String read(String address, String topic, long offset, int count) {
        TopicPartition place = new TopicPartition(topic, 0);
        StringBuilder found = new StringBuilder();
        try (KafkaConsumer<String, String> consumer = consumer(address, "reader", place)) {
            consumer.seek(place, offset);
            long end = System.currentTimeMillis() + 20000;
            int got = 0;
            while (got < count && System.currentTimeMillis() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(200)) {
                    found.append(got++ == 0 ? "" : "\t").append(record.offset()).append(':').append(timestamp(record));
                    found.append(':').append(record.key()).append(':').append(record.value());
                }
            }
        }
        return found.toString();
    }

    private static long timestamp(ConsumerRecord<String, String> record) {
        try {
            return (Long) ConsumerRecord.class.getMethod("timestamp").invoke(record);
        } catch (ReflectiveOperationException e) {  // before 0.10
            return -1;
        }
    }

    private static String commit(String address, String group, String topic, long offset) {
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = consumer(address, group, place)) {
            consumer.commitSync(Collections.singletonMap(place, new OffsetAndMetadata(offset)));
        }
        return "ok";
    }

    private static String committed(String address, String group, String topic) {
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = consumer(address, group, place)) {
            OffsetAndMetadata found = consumer.committed(place);
            return found == null ? "none" : String.valueOf(found.offset());
        }
    }
}
