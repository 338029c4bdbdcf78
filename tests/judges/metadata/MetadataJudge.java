// MetadataJudge: what Apache's own classes make of a metadata log's records and snapshots, asked over a pipe.
//
// A line of JSON asks, a line of JSON answers; bytes are hex, a record is the value that it has in the log. Run by
// tests/judges/test_metadata_image.py as a single source file; snapshots are written and read in a temporary folder.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.apache.kafka.common.message.VotersRecord;
import org.apache.kafka.common.metadata.MetadataJsonConverters;
import org.apache.kafka.common.metadata.MetadataRecordType;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.LogContext;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.loader.MetadataBatchLoader;
import org.apache.kafka.image.writer.ImageWriterOptions;
import org.apache.kafka.image.writer.RecordListWriter;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.metadata.SupportedConfigChecker;
import org.apache.kafka.raft.Batch;
import org.apache.kafka.raft.ControlRecord;
import org.apache.kafka.raft.LeaderAndEpoch;
import org.apache.kafka.raft.VoterSet;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.KRaftVersion;
import org.apache.kafka.server.common.OffsetAndEpoch;
import org.apache.kafka.snapshot.FileRawSnapshotReader;
import org.apache.kafka.snapshot.FileRawSnapshotWriter;
import org.apache.kafka.snapshot.RecordsSnapshotReader;
import org.apache.kafka.snapshot.RecordsSnapshotWriter;
import org.apache.kafka.snapshot.Snapshots;

public final class MetadataJudge {
    private static final HexFormat HEX = HexFormat.of();
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final int LARGEST_BATCH = 8 << 20;

    private MetadataJudge() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);  // nothing but answers may reach the pipe
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = MAPPER.readTree(line);
            ObjectNode answer = MAPPER.createObjectNode();
            try {
                switch (asked.get("what").asText()) {
                    case "image" -> image(asked, answer);
                    case "json" -> json(asked, answer);
                    case "read" -> read(asked, answer);
                    case "write" -> write(asked, answer);
                    default -> throw new IllegalArgumentException("no command " + asked);
                }
            } catch (Throwable e) {
                answer.put("error", e.toString());
            }
            out.println(MAPPER.writeValueAsString(answer));
            out.flush();
        }
    }

    // {batches: [[record, ...], ...]}: the records of a snapshot of the image that they make, applied in these batches.
    private static void image(JsonNode asked, ObjectNode answer) throws Exception {
        MetadataImage[] found = {MetadataImage.EMPTY};
        MetadataBatchLoader loader = new MetadataBatchLoader(
            new LogContext(),
            Time.SYSTEM,
            (message, cause) -> {
                throw new IllegalStateException(message, cause);
            },
            (delta, image, manifest) -> found[0] = image,
            SupportedConfigChecker.TRUE
        );
        long offset = 0;
        for (JsonNode batch : asked.get("batches")) {
            List<ApiMessageAndVersion> records = parsed(batch);
            loader.loadBatch(Batch.data(offset, 1, 0, 1, records), LeaderAndEpoch.UNKNOWN);
            loader.maybeFlushBatches(LeaderAndEpoch.UNKNOWN, true);
            offset += records.size();
        }
        RecordListWriter writer = new RecordListWriter();
        found[0].write(writer, new ImageWriterOptions.Builder(found[0]).build());
        putRecords(answer, writer.records());
    }

    // {records}: each as Apache's dump tool shows it.
    private static void json(JsonNode asked, ObjectNode answer) throws Exception {
        ArrayNode shown = answer.putArray("shown");
        for (ApiMessageAndVersion each : parsed(asked.get("records"))) {
            ObjectNode one = shown.addObject();
            one.put("type", MetadataRecordType.fromId(each.message().apiKey()).toString());
            one.put("version", each.version());
            one.set("data", MetadataJsonConverters.writeJson(each.message(), each.version()));
        }
    }

    // {offset, epoch, bytes}: the records of this snapshot, its control records in words, and its timestamp.
    private static void read(JsonNode asked, ObjectNode answer) throws Exception {
        OffsetAndEpoch id = new OffsetAndEpoch(asked.get("offset").asLong(), asked.get("epoch").asInt());
        Path folder = Files.createTempDirectory("snapshot");
        Path path = Snapshots.snapshotPath(folder, id);
        Files.write(path, HEX.parseHex(asked.get("bytes").asText()));
        List<ApiMessageAndVersion> records = new ArrayList<>();
        ArrayNode controls = answer.putArray("controls");
        try (FileRawSnapshotReader file = FileRawSnapshotReader.open(folder, id);
             RecordsSnapshotReader<ApiMessageAndVersion> reader = RecordsSnapshotReader.of(
                 file, MetadataRecordSerde.INSTANCE, BufferSupplier.create(), LARGEST_BATCH, true, new LogContext())) {
            answer.put("timestamp", reader.lastContainedLogTimestamp());
            while (reader.hasNext()) {
                Batch<ApiMessageAndVersion> batch = reader.next();
                records.addAll(batch.records());
                for (ControlRecord control : batch.controlRecords()) {
                    controls.add(control.type().toString());
                }
            }
        } finally {
            Files.delete(path);
            Files.delete(folder);
        }
        putRecords(answer, records);
    }

    // {offset, epoch, timestamp, records, voters or null}: the bytes of a snapshot of these records.
    private static void write(JsonNode asked, ObjectNode answer) throws Exception {
        OffsetAndEpoch id = new OffsetAndEpoch(asked.get("offset").asLong(), asked.get("epoch").asInt());
        Path folder = Files.createTempDirectory("snapshot");
        RecordsSnapshotWriter.Builder builder = new RecordsSnapshotWriter.Builder()
            .setLastContainedLogTimestamp(asked.get("timestamp").asLong())
            .setMaxBatchSizeBytes(LARGEST_BATCH)
            .setRawSnapshotWriter(FileRawSnapshotWriter.create(folder, id));
        if (asked.get("voters").isNull()) {
            builder.setKraftVersion(KRaftVersion.KRAFT_VERSION_0);
        } else {
            ByteBuffer voters = ByteBuffer.wrap(HEX.parseHex(asked.get("voters").asText()));
            VotersRecord record = new VotersRecord(new ByteBufferAccessor(voters), (short) 0);
            builder.setKraftVersion(KRaftVersion.KRAFT_VERSION_1).setVoterSet(Optional.of(VoterSet.fromVotersRecord(record)));
        }
        try (RecordsSnapshotWriter<ApiMessageAndVersion> writer = builder.build(MetadataRecordSerde.INSTANCE)) {
            writer.append(parsed(asked.get("records")));
            writer.freeze();
        }
        Path path = Snapshots.snapshotPath(folder, id);
        answer.put("bytes", HEX.formatHex(Files.readAllBytes(path)));
        Files.delete(path);
        Files.delete(folder);
    }

    private static List<ApiMessageAndVersion> parsed(JsonNode values) {
        List<ApiMessageAndVersion> records = new ArrayList<>();
        for (JsonNode value : values) {
            byte[] bytes = HEX.parseHex(value.asText());
            records.add(MetadataRecordSerde.INSTANCE.read(new ByteBufferAccessor(ByteBuffer.wrap(bytes)), bytes.length));
        }
        return records;
    }

    private static void putRecords(ObjectNode answer, List<ApiMessageAndVersion> records) {
        ArrayNode values = answer.putArray("records");
        for (ApiMessageAndVersion record : records) {
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer buffer = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(record, cache));
            MetadataRecordSerde.INSTANCE.write(record, cache, new ByteBufferAccessor(buffer));
            values.add(HEX.formatHex(buffer.array()));
        }
    }
}
