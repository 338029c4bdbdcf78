// Driver of Kafka Streams: a word count in transactions. Arguments: the broker's host:port; a folder for its state.
// The exchange over standard input and output is that of driver.py; it can be asked for "version", "start", "state" and
// "close".

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

public class StreamsDriver {
    static KafkaStreams running;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        ObjectMapper json = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = json.readTree(line);
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("value", answer(request, arguments[0], arguments[1]));
            } catch (Exception error) {
                answer.put("error", error.getClass().getSimpleName());
                answer.put("code", null);
                answer.put("text", String.valueOf(error.getMessage()));
            }
            out.println(json.writeValueAsString(answer));
        }
        Runtime.getRuntime().halt(0);
    }

    static Object answer(JsonNode request, String address, String folder) throws IOException {
        JsonNode given = request.get("arguments");
        switch (request.get("operation").asText()) {
            case "version": return version();
            case "state": return running.state().toString();
            case "close": return running.close(Duration.ofSeconds(given.get("within_s").asLong()));
            case "start":
                running = new KafkaStreams(
                    wordCount(given.get("source").asText(), given.get("topic").asText()).build(),
                    settings(given, address, folder));
                // as a supervisor would: a thread that gave up, having waited for a broker too long, is made anew
                running.setUncaughtExceptionHandler(error -> StreamThreadExceptionResponse.REPLACE_THREAD);
                running.start();
                return null;
            default: throw new IllegalArgumentException(request.get("operation").asText());
        }
    }

    static String version() throws IOException {
        Properties about = new Properties();
        try (InputStream in = KafkaStreams.class.getResourceAsStream("/kafka/kafka-streams-version.properties")) {
            about.load(in);
        }
        return about.getProperty("version");
    }

    /** Lines to words, words to their numbers: by way of a repartition topic, and of the changelog of a table. */
    static StreamsBuilder wordCount(String source, String topic) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(source, Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .map((word, count) -> new KeyValue<>(word, word + " " + count))
            .to(topic, Produced.with(Serdes.String(), Serdes.String()));
        return builder;
    }

    static Properties settings(JsonNode given, String address, String folder) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given.get("name").asText());
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, address);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // every count is written, none is skipped
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.consumerPrefix("max.poll.records"), 10);
        if (given.has("settings")) {
            given.get("settings").fields().forEachRemaining(each -> settings.put(each.getKey(), each.getValue().asText()));
        }
        return settings;
    }
}
