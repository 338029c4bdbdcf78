// Has Testcontainers' modules for Kafka start an image, and Java's clients use it. Run from source, the jars on the class
// path. Arguments: the image, and which class starts it: apache, native, confluent, or old (org.testcontainers.containers).

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.kafka.ConfluentKafkaContainer;
import org.testcontainers.kafka.KafkaContainer;
import org.testcontainers.utility.DockerImageName;

public class TestcontainersDriver {
    public static void main(String[] arguments) throws Exception {
        DockerImageName image = DockerImageName.parse(arguments[0]);
        switch (arguments[1]) {
            case "apache": try (var one = new KafkaContainer(image.asCompatibleSubstituteFor("apache/kafka"))) { use(one, one::getBootstrapServers); } break;
            case "native": try (var one = new KafkaContainer(image.asCompatibleSubstituteFor("apache/kafka-native"))) { use(one, one::getBootstrapServers); } break;
            case "confluent": try (var one = new ConfluentKafkaContainer(image.asCompatibleSubstituteFor("confluentinc/cp-kafka"))) { use(one, one::getBootstrapServers); } break;
            case "old": try (var one = new org.testcontainers.containers.KafkaContainer(image.asCompatibleSubstituteFor("confluentinc/cp-kafka"))) { use(one, one::getBootstrapServers); } break;
            case "old-kraft": try (var one = new org.testcontainers.containers.KafkaContainer(image.asCompatibleSubstituteFor("confluentinc/cp-kafka")).withKraft()) { use(one, one::getBootstrapServers); } break;
            default: throw new IllegalArgumentException(arguments[1]);
        }
        System.exit(0);
    }

    static void use(GenericContainer<?> container, java.util.function.Supplier<String> bootstrap) throws Exception {
        container.start();
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap.get(), "group.id", "g", "auto.offset.reset", "earliest", "transactional.id", "t");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            System.out.println(producer.send(new ProducerRecord<>("orders", "alice", "a book")).get().offset());
            producer.commitTransaction();
        }
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("orders"));
            long end = System.nanoTime() + 30_000_000_000L;
            while (System.nanoTime() < end)
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(record.value());
                    return;
                }
        }
    }
}
