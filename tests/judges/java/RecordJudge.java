// RecordJudge: Apache's own record batches, built from and turned into JSON, all formats and codecs. Called by Judge
// alone. For releases from 4.2 on, tests/judges/java.py rewrites the imports: the classes moved to a package of their own.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.ByteBufferOutputStream;
import org.apache.kafka.common.utils.Time;

final class RecordJudge {
    private RecordJudge() {
    }

    static MemoryRecords records(byte[] bytes) {
        return MemoryRecords.readableRecords(ByteBuffer.wrap(bytes));
    }

    static ByteBuffer buffer(Object records) {
        return ((MemoryRecords) records).buffer();
    }

    /** One batch (v2) or set (v0, v1; a wrapper message if compressed) out of its description. */
    static void build(JsonNode one, ObjectNode result) {
        ByteBufferOutputStream out = new ByteBufferOutputStream(1 << 12);
        byte magic = (byte) one.get("magic").asInt();
        JsonNode records = one.get("records");
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(
            out, magic, Compression.of(CompressionType.forName(one.get("codec").asText())).build(),
            TimestampType.forName(one.get("timestamp_type").asText()), one.get("base_offset").asLong(),
            one.get("log_append_time").asLong(), one.get("producer_id").asLong(), (short) one.get("producer_epoch").asInt(),
            one.get("base_sequence").asInt(), one.get("transactional").asBoolean(), one.get("control").asBoolean(),
            one.get("leader_epoch").asInt(), Integer.MAX_VALUE, one.get("delete_horizon").asLong());
        for (JsonNode record : records) {
            long offset = record.get("offset").asLong();
            SimpleRecord simple = new SimpleRecord(
                record.get("timestamp").asLong(), bytes(record.get("key")), bytes(record.get("value")), headers(record.get("headers")));
            if (one.get("control").asBoolean()) {
                builder.appendControlRecordWithOffset(offset, simple);
            } else {
                builder.appendWithOffset(offset, simple);
            }
        }
        result.put("bytes", Judge.hex(builder.build().buffer()));
    }

    private static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Judge.HEX.parseHex(node.asText());
    }

    private static Header[] headers(JsonNode node) {
        Header[] headers = new Header[node.size()];
        for (int i = 0; i < headers.length; i++) {
            headers[i] = new RecordHeader(node.get(i).get(0).asText(), bytes(node.get(i).get(1)));
        }
        return headers;
    }

    /** Every batch of a set, each with its verdict; what stopped the reading, if anything did, is "stopped". */
    static void parse(JsonNode one, ObjectNode result) {
        ArrayNode batches = result.putArray("batches");
        MemoryRecords set = records(Judge.HEX.parseHex(one.get("bytes").asText()));
        result.put("valid_bytes", set.validBytes());
        try {
            for (RecordBatch batch : set.batches()) {
                describe(batch, batches.addObject());
            }
        } catch (Throwable e) {
            result.put("stopped", e.toString());
        }
    }

    /** A stretch of a log for a client that knows no newer format: bytes, or "unsupported" (Kafka 4 has no such code). */
    static void down(JsonNode one, ObjectNode result) throws Exception {
        MemoryRecords set = records(Judge.HEX.parseHex(one.get("bytes").asText()));
        Method convert;
        try {
            convert = MemoryRecords.class.getMethod("downConvert", byte.class, long.class, Time.class);
        } catch (NoSuchMethodException e) {
            result.put("unsupported", e.toString());
            return;
        }
        Object converted = convert.invoke(
            set, (byte) one.get("magic").asInt(), one.get("first_offset").asLong(), Time.SYSTEM);
        Object records = converted.getClass().getMethod("records").invoke(converted);
        result.put("bytes", Judge.hex(((MemoryRecords) records).buffer()));
    }

    private static void describe(RecordBatch batch, ObjectNode out) {
        out.put("magic", batch.magic());
        out.put("base_offset", batch.baseOffset());
        out.put("size", batch.sizeInBytes());
        out.put("valid", batch.isValid());
        try {
            batch.ensureValid();
        } catch (Throwable e) {
            out.put("invalid", e.toString());
        }
        try {
            header(batch, out);
            ArrayNode records = out.putArray("records");
            for (Record record : batch) {
                describe(record, records.addObject());
            }
        } catch (Throwable e) {
            out.put("stopped", e.toString());
        }
    }

    private static void header(RecordBatch batch, ObjectNode out) {
        out.put("last_offset", batch.lastOffset());
        out.put("checksum", batch.checksum());
        out.put("codec", batch.compressionType().name);
        out.put("timestamp_type", batch.timestampType().name);
        out.put("max_timestamp", batch.maxTimestamp());
        out.put("producer_id", batch.producerId());
        out.put("producer_epoch", batch.producerEpoch());
        out.put("base_sequence", batch.baseSequence());
        out.put("last_sequence", batch.lastSequence());
        out.put("transactional", batch.isTransactional());
        out.put("control", batch.isControlBatch());
        out.put("leader_epoch", batch.partitionLeaderEpoch());
        out.put("delete_horizon", batch.deleteHorizonMs().orElse(-1L));
        Integer count = batch.countOrNull();
        out.put("count", count == null ? -1 : count);
    }

    private static void describe(Record record, ObjectNode out) {
        out.put("offset", record.offset());
        out.put("timestamp", record.timestamp());
        out.put("sequence", record.sequence());
        putBytes(out, "key", record.key());
        putBytes(out, "value", record.value());
        ArrayNode headers = out.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(header.value() == null ? null : Judge.HEX.formatHex(header.value()));
        }
        try {
            record.ensureValid();
        } catch (Throwable e) {
            out.put("invalid", e.toString());
        }
    }

    private static void putBytes(ObjectNode out, String name, ByteBuffer bytes) {
        if (bytes == null) {
            out.putNull(name);
        } else {
            out.put(name, Judge.hex(bytes));
        }
    }
}
