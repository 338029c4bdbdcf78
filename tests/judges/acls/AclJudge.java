// AclJudge: Apache's AclAuthorizer of a release that has it, asked over a pipe, without any ZooKeeper.
//
// A line of JSON is a set of rules and questions; a line of 0 and 1 answers them in turn. Run by tests/judges/test_acls.py
// as a single source file; never opens a socket or a file other than the jars that it runs on.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import kafka.security.authorizer.AclAuthorizer;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.security.authorizer.AclEntry;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;
import scala.jdk.javaapi.CollectionConverters;

public final class AclJudge {
    private AclJudge() {
    }

    private record Asker(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() {
            return "L";
        }

        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.PLAINTEXT;
        }

        public int requestType() {
            return 0;
        }

        public int requestVersion() {
            return 0;
        }

        public String clientId() {
            return "";
        }

        public int correlationId() {
            return 0;
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);  // nothing but answers may reach the pipe
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        ObjectMapper mapper = new ObjectMapper();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = mapper.readTree(line);
            AclAuthorizer authorizer = authorizerOf(asked);
            StringBuilder answers = new StringBuilder();
            for (JsonNode each : asked.get("asks")) {
                answers.append(answer(authorizer, each) == AuthorizationResult.ALLOWED ? '1' : '0');
            }
            out.println(answers);
            out.flush();
        }
    }

    private static AclAuthorizer authorizerOf(JsonNode asked) throws Exception {
        AclAuthorizer authorizer = new AclAuthorizer();
        Set<KafkaPrincipal> supers = new HashSet<>();
        asked.get("supers").forEach(each -> supers.add(SecurityUtils.parseKafkaPrincipal(each.asText())));
        set(authorizer, "superUsers", CollectionConverters.asScala(supers).toSet());
        set(authorizer, "shouldAllowEveryoneIfNoAclIsFound", asked.get("open").asBoolean());
        Map<ResourcePattern, Set<AclEntry>> rules = new HashMap<>();
        for (JsonNode each : asked.get("rules")) {
            ResourcePattern pattern = new ResourcePattern(
                ResourceType.fromCode((byte) each.get(0).asInt()),
                each.get(1).asText(),
                PatternType.fromCode((byte) each.get(2).asInt()));
            AccessControlEntry entry = new AccessControlEntry(
                each.get(3).asText(),
                each.get(4).asText(),
                AclOperation.fromCode((byte) each.get(5).asInt()),
                AclPermissionType.fromCode((byte) each.get(6).asInt()));
            rules.computeIfAbsent(pattern, none -> new HashSet<>()).add(new AclEntry(entry));
        }
        rules.forEach((pattern, entries) -> authorizer.updateCache(
            pattern, new AclAuthorizer.VersionedAcls(CollectionConverters.asScala(entries).toSet(), 1)));
        return authorizer;
    }

    private static void set(AclAuthorizer authorizer, String name, Object value) throws Exception {
        Field field = AclAuthorizer.class.getDeclaredField(name);
        field.setAccessible(true);
        field.set(authorizer, value);
    }

    private static AuthorizationResult answer(AclAuthorizer authorizer, JsonNode asked) throws Exception {
        Asker asker = new Asker(
            SecurityUtils.parseKafkaPrincipal(asked.get(0).asText()), InetAddress.getByName(asked.get(1).asText()));
        AclOperation operation = AclOperation.fromCode((byte) asked.get(2).asInt());
        ResourceType type = ResourceType.fromCode((byte) asked.get(3).asInt());
        if (asked.get(4).isNull()) {
            return authorizer.authorizeByResourceType(asker, operation, type);
        }
        ResourcePattern resource = new ResourcePattern(type, asked.get(4).asText(), PatternType.LITERAL);
        return authorizer.authorize(asker, List.of(new Action(operation, resource, 1, true, true))).get(0);
    }
}
