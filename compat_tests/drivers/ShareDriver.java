// Driver of Apache's share consumers (KIP-932): run from source with the jars of a release on the class path.
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
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ShareDriver {
    static final ObjectMapper JSON = new ObjectMapper();

    final String address;
    final Map<String, KafkaShareConsumer<String, String>> members = new HashMap<>();
    final Map<String, Map<Long, ConsumerRecord<String, String>>> polled = new HashMap<>();
    final Map<String, Worker> workers = new HashMap<>();

    ShareDriver(String address) {
        this.address = address;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        ShareDriver driver = new ShareDriver(arguments[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = JSON.readTree(line);
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("value", driver.answer(request.get("operation").asText(), request.get("arguments")));
            } catch (Exception error) {
                answer.put("error", error.getClass().getSimpleName());
                answer.put("code", null);
                answer.put("text", String.valueOf(error.getMessage()));
            }
            out.println(JSON.writeValueAsString(answer));
        }
        Runtime.getRuntime().halt(0);
    }

    /** What the jar says of itself: the class that tells it has moved between releases. */
    Object version() throws Exception {
        Properties said = new Properties();
        said.load(KafkaShareConsumer.class.getResourceAsStream("/kafka/kafka-version.properties"));
        return said.getProperty("version");
    }

    Object answer(String operation, JsonNode given) throws Exception {
        String member = given.path("member").asText();
        switch (operation) {
            case "version": return version();
            case "start_at": return startAt(given);
            case "join":
                members.put(member, consumer(given.get("group").asText(), given));
                members.get(member).subscribe(List.of(given.get("topic").asText()));
                return null;
            case "poll": return poll(member, given.get("wait_ms").asLong());
            case "acknowledge":
                AcknowledgeType type = AcknowledgeType.valueOf(given.get("type").asText());
                for (JsonNode offset : given.get("offsets")) {
                    members.get(member).acknowledge(polled.get(member).get(offset.asLong()), type);
                }
                return null;
            case "commit": return commit(member);
            case "leave": members.remove(member).close(Duration.ofSeconds(5)); return null;
            case "work":
                workers.put(member, new Worker(consumer(given.get("group").asText(), given), given));
                workers.get(member).start();
                return null;
            case "accepted": return new ArrayList<>(workers.get(member).accepted);
            case "delivered": return new ArrayList<>(workers.get(member).delivered.keySet());
            case "deliveries": return new HashMap<>(workers.get(member).delivered);
            case "enable": return enable(given.get("features"));
            case "create_topic": return createTopic(given);
            case "set_group": return setGroup(given);
            case "elect_preferred": return electPreferred();
            case "stop": return workers.get(member).end();
            default: throw new IllegalArgumentException(operation);
        }
    }

    KafkaShareConsumer<String, String> consumer(String group, JsonNode given) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", given.path("most").asInt(500));
        settings.put("reconnect.backoff.max.ms", 200);
        settings.put("default.api.timeout.ms", 20000);
        return new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    /** Have a group that has no members yet begin at an offset of each partition. */
    Object startAt(JsonNode given) throws Exception {
        Map<TopicPartition, Long> offsets = new HashMap<>();
        for (int partition = 0; partition < given.get("partitions").asInt(); partition++) {
            offsets.put(new TopicPartition(given.get("topic").asText(), partition), given.get("offset").asLong());
        }
        try (Admin admin = admin()) {
            admin.alterShareGroupOffsets(given.get("group").asText(), offsets).all().get();
        }
        return null;
    }

    Admin admin() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        return Admin.create(settings);
    }

    /** Have the brokers agree on features; by name, the level. */
    Object enable(JsonNode features) throws Exception {
        Map<String, FeatureUpdate> updates = new HashMap<>();
        features.fields().forEachRemaining(each -> updates.put(
            each.getKey(), new FeatureUpdate((short) each.getValue().asInt(), FeatureUpdate.UpgradeType.UPGRADE)));
        try (Admin admin = admin()) {
            admin.updateFeatures(updates, new UpdateFeaturesOptions()).all().get();
        }
        return null;
    }

    /** A topic with as many replicas as the brokers make. */
    Object createTopic(JsonNode given) throws Exception {
        Map<String, String> configs = new HashMap<>();
        given.path("configs").fields().forEachRemaining(each -> configs.put(each.getKey(), each.getValue().asText()));
        Optional<Integer> partitions = Optional.of(given.get("partitions").asInt());
        NewTopic topic = new NewTopic(given.get("topic").asText(), partitions, Optional.empty()).configs(configs);
        try (Admin admin = admin()) {
            admin.createTopics(List.of(topic)).all().get();
        }
        return null;
    }

    Object setGroup(JsonNode given) throws Exception {
        List<AlterConfigOp> operations = new ArrayList<>();
        given.get("configs").fields().forEachRemaining(each -> operations.add(
            new AlterConfigOp(new ConfigEntry(each.getKey(), each.getValue().asText()), AlterConfigOp.OpType.SET)));
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, given.get("group").asText());
        try (Admin admin = admin()) {
            admin.incrementalAlterConfigs(Map.of(group, operations)).all().get();
        }
        return null;
    }

    /** Have the first replica of each partition lead that can. */
    Object electPreferred() throws Exception {
        try (Admin admin = admin()) {
            admin.electLeaders(ElectionType.PREFERRED, null).partitions().get();
        }
        return null;
    }

    Object poll(String member, long waitMs) {
        Map<Long, ConsumerRecord<String, String>> found = new TreeMap<>();
        List<Map<String, Object>> told = new ArrayList<>();
        for (ConsumerRecord<String, String> record : members.get(member).poll(Duration.ofMillis(waitMs))) {
            found.put(record.offset(), record);
            told.add(Map.of(
                "offset", record.offset(), "partition", record.partition(), "value", record.value(),
                "count", (int) record.deliveryCount().orElse((short) 0)));
        }
        polled.put(member, found);
        return told;
    }

    /** Wait for what was acknowledged; the failures. */
    Object commit(String member) {
        List<String> failures = new ArrayList<>();
        for (Map.Entry<TopicIdPartition, Optional<KafkaException>> each : members.get(member).commitSync().entrySet()) {
            each.getValue().ifPresent(error -> failures.add(error.getClass().getSimpleName()));
        }
        return failures;
    }

    /**
     * Accepts what it is delivered until it is stopped, and remembers what the broker has confirmed.
     *
     * Values are numbers. Those whose last digit is `reject` are rejected, those whose last digit is `release` are
     * released, as often as they come. delivered: with the highest delivery count that was told of a value.
     */
    static class Worker extends Thread {
        final KafkaShareConsumer<String, String> consumer;
        final String topic;
        final int rejected;
        final int released;
        final AtomicBoolean ends = new AtomicBoolean();
        final ConcurrentLinkedQueue<String> accepted = new ConcurrentLinkedQueue<>();
        final ConcurrentHashMap<String, Integer> delivered = new ConcurrentHashMap<>();

        Worker(KafkaShareConsumer<String, String> consumer, JsonNode given) {
            this.consumer = consumer;
            this.topic = given.get("topic").asText();
            this.rejected = given.path("reject").asInt(-1);
            this.released = given.path("release").asInt(-1);
        }

        @Override public void run() {
            consumer.subscribe(List.of(topic));
            while (!ends.get()) {
                try {
                    work();
                } catch (KafkaException | IllegalStateException error) {
                    System.err.println("worker: " + error);
                }
            }
            consumer.close(Duration.ofSeconds(5));
        }

        void work() {
            Map<String, List<String>> batch = new HashMap<>();
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                delivered.merge(record.value(), (int) record.deliveryCount().orElse((short) 0), Math::max);
                AcknowledgeType type = typeOf(record);
                if (type == AcknowledgeType.ACCEPT) {
                    batch.computeIfAbsent(record.topic() + record.partition(), each -> new ArrayList<>())
                        .add(record.value());
                }
                consumer.acknowledge(record, type);
            }
            consumer.commitSync(Duration.ofSeconds(20)).forEach((place, error) -> {
                if (error.isEmpty()) {
                    accepted.addAll(batch.getOrDefault(place.topic() + place.partition(), List.of()));
                }
            });
        }

        AcknowledgeType typeOf(ConsumerRecord<String, String> record) {
            int digit = Integer.parseInt(record.value()) % 10;
            return digit == rejected ? AcknowledgeType.REJECT
                : digit == released ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
        }

        Object end() throws InterruptedException {
            ends.set(true);
            join(30000);
            return new ArrayList<>(accepted);
        }
    }
}
