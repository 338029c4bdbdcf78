// KerberosJudge: which user a principal of Kerberos is by some rules, as Apache's KerberosShortNamer has it.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.security.kerberos.KerberosName;
import org.apache.kafka.common.security.kerberos.KerberosShortNamer;

final class KerberosJudge {
    private KerberosJudge() {
    }

    // asked: {"realm", "rules": [...], "principals": [...]}; result: {"users": [name or null for none, ...]}
    static void users(JsonNode asked, ObjectNode result) throws Exception {
        List<String> rules = new ArrayList<>();
        asked.get("rules").forEach(each -> rules.add(each.asText()));
        KerberosShortNamer namer = KerberosShortNamer.fromUnparsedRules(asked.get("realm").asText(), rules);
        var users = result.putArray("users");
        for (JsonNode each : asked.get("principals")) {
            try {
                users.add(namer.shortName(KerberosName.parse(each.asText())));
            } catch (Exception refused) {
                users.addNull();
            }
        }
    }
}
