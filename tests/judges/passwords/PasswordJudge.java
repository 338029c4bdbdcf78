// PasswordJudge: Apache's EncryptingPasswordEncoder of a release that has it, asked over a pipe.
//
// A line of JSON is a secret, how to encipher, and a text to encode or to decode; a line of JSON is what came of it. Run by
// tests/judges/test_password_encoder.py as a single source file.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Map;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.security.PasswordEncoder;

public final class PasswordJudge {
    private PasswordJudge() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);  // nothing but answers may reach the pipe
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        ObjectMapper mapper = new ObjectMapper();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = mapper.readTree(line);
            JsonNode factory = asked.get("factory");
            PasswordEncoder encoder = PasswordEncoder.encrypting(
                new Password(asked.get("secret").asText()),
                factory.isNull() ? null : factory.asText(),
                asked.get("cipher").asText(),
                asked.get("bits").asInt(),
                asked.get("iterations").asInt());
            String told;
            try {
                told = asked.has("encode")
                    ? encoder.encode(new Password(asked.get("encode").asText()))
                    : encoder.decode(asked.get("decode").asText()).value();
            } catch (Exception error) {
                out.println(mapper.writeValueAsString(Map.of("error", String.valueOf(error.getMessage()))));
                continue;
            }
            out.println(mapper.writeValueAsString(Map.of("told", told)));
        }
    }
}
