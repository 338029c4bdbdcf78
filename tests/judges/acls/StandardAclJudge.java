// StandardAclJudge: the authorizer of Apache Kafka in KRaft mode, asked over a pipe as AclJudge is.
//
// A line of JSON is a set of rules and questions; a line of 0 and 1 answers them in turn. Run by tests/judges/test_acls.py
// as a single source file; never opens a socket or a file other than the jars that it runs on.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

public final class StandardAclJudge {
    private StandardAclJudge() {
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
        Metrics metrics = new Metrics();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = mapper.readTree(line);
            try (PluginMetricsImpl own = new PluginMetricsImpl(metrics, Map.of());
                    StandardAuthorizer authorizer = authorizerOf(asked)) {
                authorizer.withPluginMetrics(own);
                StringBuilder answers = new StringBuilder();
                for (JsonNode each : asked.get("asks")) {
                    answers.append(answer(authorizer, each) == AuthorizationResult.ALLOWED ? '1' : '0');
                }
                out.println(answers);
                out.flush();
            }
        }
    }

    private static StandardAuthorizer authorizerOf(JsonNode asked) {
        List<String> supers = new ArrayList<>();
        asked.get("supers").forEach(each -> supers.add(each.asText()));
        Map<String, Object> settings = new HashMap<>();
        settings.put("super.users", String.join(";", supers));
        settings.put("allow.everyone.if.no.acl.found", asked.get("open").asText());
        settings.put("node.id", "1");
        StandardAuthorizer authorizer = new StandardAuthorizer();
        authorizer.configure(settings);
        Map<Uuid, StandardAcl> rules = new HashMap<>();
        for (JsonNode each : asked.get("rules")) {
            rules.put(new Uuid(1, rules.size() + 1), new StandardAcl(
                ResourceType.fromCode((byte) each.get(0).asInt()),
                each.get(1).asText(),
                PatternType.fromCode((byte) each.get(2).asInt()),
                each.get(3).asText(),
                each.get(4).asText(),
                AclOperation.fromCode((byte) each.get(5).asInt()),
                AclPermissionType.fromCode((byte) each.get(6).asInt())));
        }
        authorizer.loadSnapshot(rules);
        authorizer.completeInitialLoad();
        return authorizer;
    }

    private static AuthorizationResult answer(StandardAuthorizer authorizer, JsonNode asked) throws Exception {
        String[] who = asked.get(0).asText().split(":", 2);
        Asker asker = new Asker(new KafkaPrincipal(who[0], who[1]), InetAddress.getByName(asked.get(1).asText()));
        AclOperation operation = AclOperation.fromCode((byte) asked.get(2).asInt());
        ResourceType type = ResourceType.fromCode((byte) asked.get(3).asInt());
        if (asked.get(4).isNull()) {
            return authorizer.authorizeByResourceType(asker, operation, type);
        }
        ResourcePattern resource = new ResourcePattern(type, asked.get(4).asText(), PatternType.LITERAL);
        return authorizer.authorize(asker, List.of(new Action(operation, resource, 1, true, true))).get(0);
    }
}
