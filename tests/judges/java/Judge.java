// Judge: Apache's own message classes, asked over a pipe. Owns the conversation and the way between JSON trees and
// message objects (by reflection over their fields, so that records and unknown tags are covered too); RecordJudge
// owns record batches. Called by tests/judges/java.py; never opens a socket or a file other than the jars it runs on.
//
// On the pipe: a length (4 bytes, big endian) and that many bytes of UTF-8 JSON, request and answer in turn.
// In a tree: bytes and UUIDs are hex, field names are lower case without underscores, unknown tags are under "_tags".

import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.json.JsonReadFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.RawTaggedField;

public final class Judge {
    static final JsonNodeFactory NODES = JsonNodeFactory.instance;
    static final HexFormat HEX = HexFormat.of();
    private static final String[] PACKAGES = {
        "org/apache/kafka/common/message/",
        "org/apache/kafka/common/metadata/",
        "org/apache/kafka/coordinator/group/generated/",
        "org/apache/kafka/coordinator/transaction/generated/",
        "org/apache/kafka/coordinator/share/generated/",
    };
    private static final Map<String, Class<?>> MESSAGES = new HashMap<>();
    private static final Map<Class<?>, Map<String, Field>> FIELDS = new HashMap<>();
    private static final Map<Class<?>, Field> TAGS = new HashMap<>();

    private Judge() {
    }

    public static void main(String[] args) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 16));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 16));
        System.setOut(new PrintStream(System.err));  // nothing but answers may reach the pipe
        ObjectMapper mapper = JsonMapper.builder()
            .enable(JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS)
            .configure(JsonGenerator.Feature.QUOTE_NON_NUMERIC_NUMBERS, false)
            .build();
        mapper.getFactory().setStreamReadConstraints(
            com.fasterxml.jackson.core.StreamReadConstraints.builder().maxStringLength(Integer.MAX_VALUE).build());
        findMessages();
        while (true) {
            int length;
            try {
                length = in.readInt();
            } catch (EOFException closed) {
                return;
            }
            byte[] request = new byte[length];
            in.readFully(request);
            byte[] answer = mapper.writeValueAsBytes(answer(mapper.readTree(request)));
            out.writeInt(answer.length);
            out.write(answer);
            out.flush();
        }
    }

    private static JsonNode answer(JsonNode request) {
        String command = request.get("command").asText();
        if (command.equals("list")) {
            return list();
        }
        if (command.equals("fields")) {
            return fieldNames(messageClass(request));
        }
        ArrayNode results = NODES.arrayNode();
        for (JsonNode one : request.get("cases")) {
            ObjectNode result = NODES.objectNode();
            try {
                switch (command) {
                    case "encode" -> encode(one, result);
                    case "decode" -> decode(one, result);
                    case "build" -> RecordJudge.build(one, result);
                    case "down" -> RecordJudge.down(one, result);
                    case "parse" -> RecordJudge.parse(one, result);
                    case "rates" -> QuotaJudge.rates(one, result);
                    case "kerberos" -> KerberosJudge.users(one, result);
                    default -> throw new IllegalArgumentException("no command " + command);
                }
            } catch (Throwable e) {
                result.put("error", e.toString());
            }
            results.add(result);
        }
        return results;
    }

    // ---- what this release has

    private static JsonNode list() {
        ObjectNode answer = NODES.objectNode();
        ArrayNode apis = answer.putArray("apis");
        for (ApiKeys api : ApiKeys.values()) {
            if (!api.allVersions().isEmpty()) {  // 4.0 and later keep the keys of what they removed
                apis.add(describe(api));
            }
        }
        ObjectNode messages = answer.putObject("messages");
        MESSAGES.forEach((name, type) -> {
            Message message = (Message) create(type);
            messages.putArray(name).add(message.lowestSupportedVersion()).add(message.highestSupportedVersion());
        });
        ArrayNode errors = answer.putArray("errors");
        for (Errors error : Errors.values()) {
            ObjectNode one = errors.addObject();
            one.put("code", error.code());
            one.put("name", error.name());
            one.put("retriable", error.exception() instanceof RetriableException);
        }
        return answer;
    }

    /** The fields of a message and of the structs inside it, whatever the version: {name: null, or those of its struct}. */
    private static ObjectNode fieldNames(Class<?> type) {
        ObjectNode names = NODES.objectNode();
        fields(type).forEach((name, field) -> {
            Class<?> inner = field.getType();
            if (Collection.class.isAssignableFrom(inner) && elementType(field.getGenericType(), inner) instanceof Class<?> element) {
                inner = element;
            }
            names.set(name, Message.class.isAssignableFrom(inner) ? fieldNames(inner) : NODES.nullNode());
        });
        return names;
    }

    private static ObjectNode describe(ApiKeys api) {
        ObjectNode one = NODES.objectNode();
        one.put("key", api.id);
        one.put("name", api.name);
        one.putPOJO("listeners", api.messageType.listeners().stream().map(Enum::name).toList());
        one.put("stable", api.latestVersion(false));
        ObjectNode headers = one.putObject("headers");
        ApiMessage request = api.messageType.newRequest();
        one.putArray("request").add(request.lowestSupportedVersion()).add(request.highestSupportedVersion());
        ApiMessage response = api.messageType.newResponse();
        one.putArray("response").add(response.lowestSupportedVersion()).add(response.highestSupportedVersion());
        for (int version = request.lowestSupportedVersion(); version <= request.highestSupportedVersion(); version++) {
            headers.putArray(Integer.toString(version))
                .add(api.requestHeaderVersion((short) version))
                .add(api.responseHeaderVersion((short) version));
        }
        return one;
    }

    /** Every generated top-level message class of the jars, under Kafka's message name ("Data" of requests cut off). */
    private static void findMessages() throws IOException, ClassNotFoundException {
        for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
            if (!path.endsWith(".jar")) {
                continue;
            }
            try (JarFile jar = new JarFile(path)) {
                for (Iterator<JarEntry> entries = jar.entries().asIterator(); entries.hasNext();) {
                    String name = entries.next().getName();
                    for (String folder : PACKAGES) {
                        if (name.startsWith(folder) && name.endsWith(".class") && !name.contains("$")) {
                            addMessage(name.substring(0, name.length() - 6).replace('/', '.'));
                        }
                    }
                }
            }
        }
    }

    private static void addMessage(String className) throws ClassNotFoundException {
        Class<?> type = Class.forName(className, false, Judge.class.getClassLoader());
        if (Message.class.isAssignableFrom(type) && !type.isInterface()) {
            String name = type.getSimpleName();
            boolean suffixed = name.endsWith("RequestData") || name.endsWith("ResponseData") || name.endsWith("HeaderData");
            MESSAGES.put(suffixed ? name.substring(0, name.length() - 4) : name, type);
        }
    }

    // ---- messages

    private static void encode(JsonNode one, ObjectNode result) throws Exception {
        short version = (short) one.get("version").asInt();
        Message message = (Message) create(messageClass(one));
        fill(message, one.get("value"));
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        if (buffer.hasRemaining()) {
            throw new IllegalStateException("size() said " + buffer.capacity() + ", write() wrote " + buffer.position());
        }
        result.put("bytes", HEX.formatHex(buffer.array()));
    }

    private static void decode(JsonNode one, ObjectNode result) throws Exception {
        ByteBuffer buffer = ByteBuffer.wrap(HEX.parseHex(one.get("bytes").asText()));
        Message message = (Message) create(messageClass(one));
        message.read(new ByteBufferAccessor(buffer), (short) one.get("version").asInt());
        result.set("value", tree(message));
        result.put("left", buffer.remaining());
    }

    private static Class<?> messageClass(JsonNode one) {
        Class<?> type = MESSAGES.get(one.get("name").asText());
        if (type == null) {
            throw new IllegalArgumentException("no message " + one.get("name"));
        }
        return type;
    }

    private static Object create(Class<?> type) {
        try {
            return type.getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    /** The data fields of a generated class by their lower-case names. */
    private static Map<String, Field> fields(Class<?> type) {
        return FIELDS.computeIfAbsent(type, key -> {
            Map<String, Field> found = new LinkedHashMap<>();
            for (Field field : key.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) || field.getName().equals("next") || field.getName().equals("prev")) {
                    continue;
                }
                field.setAccessible(true);
                if (field.getName().equals("_unknownTaggedFields")) {
                    TAGS.put(key, field);
                } else {
                    // one field has another name from 4.4 on: generationIdOrMemberEpoch of TxnOffsetCommit
                    found.put(field.getName().toLowerCase(Locale.ROOT).replace("ormemberepoch", ""), field);
                }
            }
            return found;
        });
    }

    private static void fill(Message message, JsonNode tree) throws Exception {
        Map<String, Field> fields = fields(message.getClass());
        for (Iterator<Map.Entry<String, JsonNode>> entries = tree.fields(); entries.hasNext();) {
            Map.Entry<String, JsonNode> entry = entries.next();
            if (entry.getKey().equals("_tags")) {
                List<RawTaggedField> tags = message.unknownTaggedFields();
                entry.getValue().fields().forEachRemaining(tag ->
                    tags.add(new RawTaggedField(Integer.parseInt(tag.getKey()), HEX.parseHex(tag.getValue().asText()))));
                continue;
            }
            Field field = fields.get(entry.getKey());
            if (field == null) {
                throw new IllegalArgumentException(message.getClass().getSimpleName() + " has no field " + entry.getKey());
            }
            field.set(message, value(field.getGenericType(), entry.getValue()));
        }
    }

    private static Object value(Type generic, JsonNode node) throws Exception {
        if (node.isNull()) {
            return null;
        }
        Class<?> type = (Class<?>) (generic instanceof ParameterizedType parameterized ? parameterized.getRawType() : generic);
        if (Collection.class.isAssignableFrom(type)) {
            return collection(generic, type, node);
        }
        if (Message.class.isAssignableFrom(type)) {
            Message message = (Message) create(type);
            fill(message, node);
            return message;
        }
        return scalar(type, node);
    }

    private static Object scalar(Class<?> type, JsonNode node) {
        switch (type.getSimpleName()) {
            case "byte", "Byte":
                return (byte) node.asInt();
            case "short", "Short":
                return (short) node.asInt();
            case "int", "Integer":
                return node.asInt();
            case "long", "Long":
                return node.asLong();
            case "double", "Double":
                return node.asDouble();
            case "boolean", "Boolean":
                return node.asBoolean();
            case "String":
                return node.asText();
            case "Uuid":
                ByteBuffer bits = ByteBuffer.wrap(HEX.parseHex(node.asText()));
                return new Uuid(bits.getLong(), bits.getLong());
            case "byte[]":
                return HEX.parseHex(node.asText());
            case "ByteBuffer":
                return ByteBuffer.wrap(HEX.parseHex(node.asText()));
            case "BaseRecords":
                return RecordJudge.records(HEX.parseHex(node.asText()));
            default:
                throw new IllegalArgumentException("no way to make a " + type);
        }
    }

    @SuppressWarnings("unchecked")
    private static Object collection(Type generic, Class<?> type, JsonNode node) throws Exception {
        Type element = elementType(generic, type);
        Collection<Object> made = type == List.class ? new ArrayList<>(node.size()) : (Collection<Object>) create(type);
        for (JsonNode one : node) {
            made.add(value(element, one));
        }
        return made;
    }

    private static Type elementType(Type generic, Class<?> type) {
        Type owner = generic instanceof ParameterizedType ? generic : type.getGenericSuperclass();
        return ((ParameterizedType) owner).getActualTypeArguments()[0];
    }

    private static JsonNode tree(Object value) throws Exception {
        if (value == null) {
            return NODES.nullNode();
        } else if (value instanceof Message message) {
            return messageTree(message);
        } else if (value instanceof Collection<?> collection) {
            ArrayNode array = NODES.arrayNode(collection.size());
            for (Object one : collection) {
                array.add(tree(one));
            }
            return array;
        } else if (value instanceof String text) {
            return NODES.textNode(text);
        } else if (value instanceof Boolean bool) {
            return NODES.booleanNode(bool);
        } else if (value instanceof Double number) {
            return NODES.numberNode(number);
        } else if (value instanceof Number number) {
            return NODES.numberNode(number.longValue());
        } else if (value instanceof Uuid uuid) {
            return NODES.textNode(HEX.toHexDigits(uuid.getMostSignificantBits()) + HEX.toHexDigits(uuid.getLeastSignificantBits()));
        } else if (value instanceof byte[] bytes) {
            return NODES.textNode(HEX.formatHex(bytes));
        } else if (value instanceof ByteBuffer buffer) {
            return NODES.textNode(hex(buffer));
        }
        return NODES.textNode(hex(RecordJudge.buffer(value)));
    }

    static String hex(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HEX.formatHex(bytes);
    }

    private static ObjectNode messageTree(Message message) throws Exception {
        ObjectNode tree = NODES.objectNode();
        for (Map.Entry<String, Field> field : fields(message.getClass()).entrySet()) {
            tree.set(field.getKey(), tree(field.getValue().get(message)));
        }
        List<?> tags = (List<?>) TAGS.get(message.getClass()).get(message);
        if (tags != null && !tags.isEmpty()) {
            ObjectNode unknown = tree.putObject("_tags");
            for (Object one : tags) {
                RawTaggedField tag = (RawTaggedField) one;
                unknown.put(Integer.toString(tag.tag()), HEX.formatHex(tag.data()));
            }
        }
        return tree;
    }
}
