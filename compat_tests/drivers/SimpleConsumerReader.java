// What OldJavaDriver asks of a consumer, by the SimpleConsumer of Kafka 0.8.2, written in Scala: Fetch 0, ListOffsets 0,
// OffsetCommit 0 and 1, OffsetFetch 0 and 1. In place of OldJavaReader, under its name.

import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import kafka.api.FetchRequestBuilder;
import kafka.api.PartitionOffsetRequestInfo;
import kafka.common.OffsetAndMetadata;
import kafka.common.OffsetMetadataAndError;
import kafka.common.TopicAndPartition;
import kafka.javaapi.FetchResponse;
import kafka.javaapi.OffsetCommitRequest;
import kafka.javaapi.OffsetFetchRequest;
import kafka.javaapi.OffsetRequest;
import kafka.javaapi.consumer.SimpleConsumer;
import kafka.message.MessageAndOffset;

final class OldJavaReader {
    private OldJavaReader() {
    }

    static String answer(String address, String[] words) throws Exception {
        String[] place = address.split(":");
        SimpleConsumer consumer = new SimpleConsumer(place[0], Integer.parseInt(place[1]), 10000, 1 << 20, "simple");
        try {
            switch (words[0]) {
                case "read":
                    int most = words.length > 4 ? Integer.parseInt(words[4]) : 1 << 20;
                    return read(consumer, words[1], Long.parseLong(words[2]), Integer.parseInt(words[3]), most);
                case "offsets": return offsets(consumer, words[1], Long.parseLong(words[2]), Integer.parseInt(words[3]));
                case "commit": return commit(consumer, words[1], words[2], Long.parseLong(words[3]));
                case "committed": return committed(consumer, words[1], words[2]);
                default: throw new IllegalArgumentException(words[0]);
            }
        } finally {
            consumer.close();
        }
    }

    private static String read(SimpleConsumer consumer, String topic, long offset, int count, int most) throws Exception {
        StringBuilder found = new StringBuilder();
        int got = 0;
        for (int turn = 0; got < count && turn < 1000; turn++) {
            FetchResponse answer = consumer.fetch(
                new FetchRequestBuilder().clientId("simple").addFetch(topic, 0, offset, most).maxWait(200).minBytes(1).build());
            if (answer.hasError()) {
                return "error\tcode " + answer.errorCode(topic, 0);
            }
            if (answer.messageSet(topic, 0).validBytes() == 0 && answer.messageSet(topic, 0).sizeInBytes() > 0) {
                return "error\tMessageSizeTooLarge";  // by this the high-level consumer knows
            }
            for (MessageAndOffset one : answer.messageSet(topic, 0)) {
                if (one.offset() < offset) {
                    continue;
                }
                byte[] key = new byte[one.message().key().remaining()], value = new byte[one.message().payload().remaining()];
                one.message().key().get(key);
                one.message().payload().get(value);
                found.append(got++ == 0 ? "" : "\t").append(one.offset()).append(":-1:");
                found.append(new String(key)).append(':').append(new String(value));
                offset = one.nextOffset();
            }
        }
        return found.toString();
    }

    private static String offsets(SimpleConsumer consumer, String topic, long time, int most) {
        Map<TopicAndPartition, PartitionOffsetRequestInfo> asked = new HashMap<TopicAndPartition, PartitionOffsetRequestInfo>();
        asked.put(new TopicAndPartition(topic, 0), new PartitionOffsetRequestInfo(time, most));
        long[] found = consumer.getOffsetsBefore(new OffsetRequest(asked, (short) 0, "simple")).offsets(topic, 0);
        StringBuilder answer = new StringBuilder();
        for (long one : found) {
            answer.append(answer.length() == 0 ? "" : ",").append(one);
        }
        return answer.toString();
    }

    private static String commit(SimpleConsumer consumer, String group, String topic, long offset) {
        TopicAndPartition place = new TopicAndPartition(topic, 0);
        Map<TopicAndPartition, OffsetAndMetadata> given =
            Collections.singletonMap(place, OffsetAndMetadata.apply(offset, "", -1L));
        short code = ((Number) consumer.commitOffsets(new OffsetCommitRequest(group, given, 0, "simple", (short) 0))
            .errors().get(place)).shortValue();
        return code == 0 ? "ok" : "error\tcode " + code;
    }

    private static String committed(SimpleConsumer consumer, String group, String topic) {
        TopicAndPartition place = new TopicAndPartition(topic, 0);
        OffsetMetadataAndError found = consumer.fetchOffsets(
            new OffsetFetchRequest(group, Collections.singletonList(place), (short) 0, 0, "simple")).offsets().get(place);
        return found.error() == 0 ? String.valueOf(found.offset()) : "none";
    }
}
