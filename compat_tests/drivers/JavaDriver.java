// Driver of Apache's Java clients, any release: run from source with the release's jars on the class path.
// Argument: the broker's host:port. The exchange over standard input and output is that of driver.py.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class JavaDriver {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, String> STRATEGIES = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
        "cooperative", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    final String address;
    final Admin admin;
    final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    final Map<String, KafkaConsumer<byte[], byte[]>> members = new HashMap<>();

    JavaDriver(String address) {
        this.address = address;
        Properties settings = new Properties();
        connect(settings);
        this.admin = Admin.create(settings);
    }

    /** Where the broker is, and what the client is to be told of security. */
    void connect(Properties settings) {
        settings.put("bootstrap.servers", address);
        String given = System.getenv("CLIENT_SETTINGS");
        if (given == null) return;
        try {
            JSON.readTree(given).fields().forEachRemaining(each -> settings.put(each.getKey(), each.getValue().asText()));
        } catch (java.io.IOException wrong) {
            throw new IllegalArgumentException(wrong);
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        JavaDriver driver = new JavaDriver(arguments[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = JSON.readTree(line);
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("value", driver.answer(request.get("operation").asText(), request.get("arguments")));
            } catch (Exception thrown) {
                Throwable error = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
                Errors code = Errors.forException(error);
                answer.put("error", error.getClass().getSimpleName());
                answer.put("code", code == Errors.UNKNOWN_SERVER_ERROR ? null : (Object) code.code());
                answer.put("text", String.valueOf(error.getMessage()));
            }
            out.println(JSON.writeValueAsString(answer));
        }
        Runtime.getRuntime().halt(0);
    }

    Object answer(String operation, JsonNode given) throws Exception {
        String topic = given.path("topic").asText();
        TopicPartition place = new TopicPartition(topic, given.path("partition").asInt());
        String member = given.path("member").asText();
        String group = given.path("group").asText();
        int count = given.path("count").asInt();
        long wait = given.path("wait_ms").asLong();
        switch (operation) {
            case "version": return version();
            case "brokers": return brokers();
            case "create_topic": return createTopic(topic, given.get("partitions").asInt(), given.get("configs"));
            case "topics": return admin.listTopics().names().get();
            case "partitions": return partitions(topic);
            case "add_partitions":
                return admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(given.get("total").asInt()))).all().get();
            case "delete_topic": return admin.deleteTopics(List.of(topic)).all().get();
            case "produce": return produce(topic, given);
            case "read": return read(place, given.get("offset").asLong(), count, wait);
            case "transact": return transact(topic, given);
            case "copy": return copy(topic, group, given);
            case "read_committed": return readCommitted(topic, count, wait);
            case "bounds": return List.of(offset(place, OffsetSpec.earliest()), offset(place, OffsetSpec.latest()));
            case "offset_at": return offsetAt(place, given.get("timestamp").asLong());
            case "delete_records": return deleteRecords(place, given.get("before").asLong());
            case "join": return join(member, group, given);
            case "poll": return poll(members.get(member), count, wait);
            case "assignment": return assignment(member);
            case "commit": members.get(member).commitSync(); return null;
            case "leave": members.remove(member).close(); return null;
            case "committed": return committed(group, place);
            case "groups": return groups();
            case "group": return group(group);
            case "delete_group": return admin.deleteConsumerGroups(List.of(group)).all().get();
            case "topic_configs": return configs(new ConfigResource(ConfigResource.Type.TOPIC, topic));
            case "broker_configs":
                return configs(new ConfigResource(ConfigResource.Type.BROKER, given.get("broker").asText()));
            case "set_topic_config": return setTopicConfig(topic, given);
            case "log_dirs": return logDirs();
            default: throw new IllegalArgumentException(operation);
        }
    }

    /** What the jar says of itself: the class that tells it has moved between releases. */
    Object version() throws Exception {
        Properties said = new Properties();
        said.load(KafkaConsumer.class.getResourceAsStream("/kafka/kafka-version.properties"));
        return said.getProperty("version");
    }

    Object brokers() throws Exception {
        List<Object> found = new ArrayList<>();
        admin.describeCluster().nodes().get().forEach(node -> found.add(List.of(node.id(), node.host(), node.port())));
        return found;
    }

    Object createTopic(String topic, int partitions, JsonNode configs) throws Exception {
        Map<String, String> settings = new HashMap<>();
        configs.fields().forEachRemaining(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        return admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(settings))).all().get();
    }

    Object partitions(String topic) throws Exception {
        List<Object> found = new ArrayList<>();
        admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions()
            .forEach(partition -> found.add(partition.partition()));
        return found;
    }

    Object produce(String topic, JsonNode given) throws Exception {
        Properties settings = new Properties();
        connect(settings);
        settings.put("acks", given.get("acks").asText());
        settings.put("compression.type", given.get("codec").asText());
        settings.put("enable.idempotence", given.get("idempotent").asText());
        if (!given.get("limit").isNull()) settings.put("max.request.size", given.get("limit").asText());
        KafkaProducer<byte[], byte[]> producer = producers.computeIfAbsent(
            settings.toString(), key -> new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer()));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : given.get("records")) {
            List<Header> headers = new ArrayList<>();
            for (JsonNode pair : record.path("headers")) headers.add(new RecordHeader(pair.get(0).asText(), data(pair.get(1))));
            Integer partition = record.has("partition") ? record.get("partition").asInt() : null;
            Long timestamp = record.has("timestamp") ? record.get("timestamp").asLong() : null;
            byte[] key = data(record.path("key"));
            sent.add(producer.send(new ProducerRecord<>(topic, partition, timestamp, key, data(record.get("value")), headers)));
        }
        producer.flush();
        List<Object> places = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) places.add(List.of(one.get().partition(), one.get().offset()));
        return places;
    }

    Object read(TopicPartition place, long offset, int count, long wait) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(new Properties())) {
            consumer.assign(List.of(place));
            consumer.seek(place, offset);
            return poll(consumer, count, wait);
        }
    }

    Object transact(String topic, JsonNode given) {
        String name = given.get("name").asText();
        KafkaProducer<byte[], byte[]> producer = producers.computeIfAbsent(given.get("producer").asText(), key -> {
            Properties settings = new Properties();
            connect(settings);
            settings.put("transactional.id", name);
            KafkaProducer<byte[], byte[]> made =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
            made.initTransactions();
            return made;
        });
        producer.beginTransaction();
        for (JsonNode value : given.get("values")) producer.send(new ProducerRecord<>(topic, 0, null, data(value)));
        producer.flush();
        TopicPartition source = new TopicPartition(given.get("source").asText(), 0);
        producer.sendOffsetsToTransaction(
            Map.of(source, new OffsetAndMetadata(given.get("offset").asLong())),
            new ConsumerGroupMetadata(given.get("group").asText()));
        if (!given.get("outcome").asBoolean()) return null;
        if (given.get("commit").asBoolean()) producer.commitTransaction();
        else producer.abortTransaction();
        return null;
    }

    /** Copy records from topic to topic as a member of a group, until the last one is committed; the number of commits. */
    Object copy(String topic, String group, JsonNode given) throws Exception {
        Properties reading = new Properties();
        reading.put("group.id", group);
        reading.put("auto.offset.reset", "earliest");
        reading.put("isolation.level", "read_committed");
        reading.put("max.poll.records", "10");
        Properties writing = new Properties();
        connect(writing);
        writing.put("transactional.id", given.get("name").asText());
        Copier copier = new Copier(topic, given.get("last").asText());
        while (true) {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(reading);
                 KafkaProducer<byte[], byte[]> producer =
                     new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer())) {
                producer.initTransactions();
                consumer.subscribe(List.of(given.get("source").asText()));
                return copier.run(consumer, producer);
            } catch (KafkaException lost) {
                System.err.println("a new producer, for " + lost);
            }
        }
    }

    /** Transactions of a group member: some records, each copied, and how far it has got. */
    static class Copier {
        final String topic;
        final String last;
        int begun = 0;
        int committed = 0;

        Copier(String topic, String last) {
            this.topic = topic;
            this.last = last;
        }

        /** Until the last record is committed. Throws KafkaException where it takes another producer to go on. */
        int run(KafkaConsumer<byte[], byte[]> consumer, KafkaProducer<byte[], byte[]> producer) {
            boolean done = false;
            while (!done) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                boolean commit = ++begun % 5 != 0;
                boolean atEnd = false;
                producer.beginTransaction();
                try {
                    Map<TopicPartition, OffsetAndMetadata> after = new HashMap<>();
                    for (ConsumerRecord<byte[], byte[]> record : records) {
                        String value = text(record.value());
                        atEnd |= value.equals(last);
                        String copy = commit ? value : "aborted " + value;
                        producer.send(new ProducerRecord<>(topic, 0, null, copy.getBytes(StandardCharsets.ISO_8859_1)));
                        after.put(new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                    }
                    producer.sendOffsetsToTransaction(after, consumer.groupMetadata());
                    if (commit) {
                        producer.commitTransaction();
                        committed++;
                        done = atEnd;
                        continue;
                    }
                } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException fatal) {
                    throw fatal;
                } catch (KafkaException abortable) {
                    System.err.println("aborts, for " + abortable);
                }
                producer.abortTransaction();
                rewind(consumer);
            }
            return committed;
        }

        static void rewind(KafkaConsumer<byte[], byte[]> consumer) {
            Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
            for (TopicPartition place : consumer.assignment()) {
                OffsetAndMetadata known = committed.get(place);
                if (known == null) consumer.seekToBeginning(List.of(place));
                else consumer.seek(place, known.offset());
            }
        }
    }

    Object readCommitted(String topic, int count, long wait) {
        Properties settings = new Properties();
        settings.put("isolation.level", "read_committed");
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            consumer.assign(List.of(place));
            consumer.seek(place, 0);
            List<Object> values = new ArrayList<>();
            for (Object record : (List<?>) poll(consumer, count, wait)) values.add(((Map<?, ?>) record).get("value"));
            return values;
        }
    }

    long offset(TopicPartition place, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(place, spec)).partitionResult(place).get().offset();
    }

    Object offsetAt(TopicPartition place, long timestamp) throws Exception {
        long found = offset(place, OffsetSpec.forTimestamp(timestamp));
        return found < 0 ? null : (Object) found;
    }

    Object deleteRecords(TopicPartition place, long before) throws Exception {
        return admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(before))).lowWatermarks().get(place).get()
            .lowWatermark();
    }

    Object join(String member, String group, JsonNode given) {
        Properties settings = new Properties();
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        if (given.get("strategy").asText().equals("consumer")) {
            settings.put("group.protocol", "consumer");  // the coordinator assigns, and says how often to send heartbeats
        } else {
            settings.put("heartbeat.interval.ms", "500");
            settings.put("partition.assignment.strategy", STRATEGIES.get(given.get("strategy").asText()));
        }
        if (!given.get("instance").isNull()) settings.put("group.instance.id", given.get("instance").asText());
        List<String> topics = new ArrayList<>();
        given.get("topics").forEach(topic -> topics.add(topic.asText()));
        KafkaConsumer<byte[], byte[]> consumer = consumer(settings);
        consumer.subscribe(topics);
        members.put(member, consumer);
        return null;
    }

    KafkaConsumer<byte[], byte[]> consumer(Properties settings) {
        connect(settings);
        settings.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    Object poll(KafkaConsumer<byte[], byte[]> consumer, int count, long wait) {
        List<Object> records = new ArrayList<>();
        long deadline = System.currentTimeMillis() + wait;
        while ((records.size() < count || count == 0) && System.currentTimeMillis() < deadline) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) records.add(shown(record));
        }
        return records;
    }

    Object shown(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) headers.add(new String[] {header.key(), text(header.value())});
        Map<String, Object> shown = new HashMap<>();
        shown.put("partition", record.partition());
        shown.put("offset", record.offset());
        shown.put("timestamp", record.timestamp());
        shown.put("key", text(record.key()));
        shown.put("value", text(record.value()));
        shown.put("headers", headers);
        return shown;
    }

    Object assignment(String member) {
        List<Object> found = new ArrayList<>();
        members.get(member).assignment().forEach(place -> found.add(List.of(place.topic(), place.partition())));
        return found;
    }

    Object committed(String group, TopicPartition place) throws Exception {
        OffsetAndMetadata found = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(place);
        return found == null ? null : (Object) found.offset();
    }

    Object groups() throws Exception {
        List<Object> found = new ArrayList<>();
        admin.listConsumerGroups().all().get().forEach(group -> found.add(group.groupId()));
        return found;
    }

    Object group(String group) throws Exception {
        ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        return Map.of("state", found.state().toString(), "members", found.members().size());
    }

    Object configs(ConfigResource resource) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        for (ConfigEntry entry : config.entries()) found.put(entry.name(), entry.value());
        return found;
    }

    Object setTopicConfig(String topic, JsonNode given) throws Exception {
        ConfigEntry entry = new ConfigEntry(given.get("name").asText(), given.get("value").asText());
        List<AlterConfigOp> change = List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET));
        return admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic), change)).all().get();
    }

    Object logDirs() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        List<Integer> nodes = new ArrayList<>();
        admin.describeCluster().nodes().get().forEach(node -> nodes.add(node.id()));
        for (Map<String, LogDirDescription> directories : admin.describeLogDirs(nodes).allDescriptions().get().values())
            for (LogDirDescription directory : directories.values())
                directory.replicaInfos().forEach((place, replica) -> found.put(place.toString(), replica.size()));
        return found;
    }

    static byte[] data(JsonNode node) {
        return node.isNull() || node.isMissingNode() ? null : node.asText().getBytes(StandardCharsets.ISO_8859_1);
    }

    static String text(byte[] data) {
        return data == null ? null : new String(data, StandardCharsets.ISO_8859_1);
    }
}
