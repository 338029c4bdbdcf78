// Driver of Apache's Java clients from before admin clients, 0.8.2 to 2.0: run from source with one release's jars.
// Arguments: the broker's host:port, then a command for each line of standard input, fields between tabs:
//   produce TOPIC CODEC COUNT VALUE   -> the offsets, comma-separated
//   read TOPIC OFFSET COUNT           -> offset:timestamp:key:value of each, between tabs (-1 where it has no time)
//   commit GROUP TOPIC OFFSET         -> ok
//   committed GROUP TOPIC             -> the offset, or none
// An error is answered with "error", a tab and what it says. Keys are k0, k1...; values are VALUE with the number.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

public class OldJavaDriver {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            String answer;
            try {
                answer = words[0].equals("produce") ? produce(arguments[0], words) : OldJavaReader.answer(arguments[0], words);
            } catch (Throwable e) {
                Throwable cause = e.getCause() == null ? e : e.getCause();
                answer = "error\t" + cause;
            }
            out.println(answer.replace('\n', ' '));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    static String produce(String address, String[] words) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("compression.type", words[2]);
        settings.put("acks", "all");
        settings.put("linger.ms", "20");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        KafkaProducer<String, String> producer = new KafkaProducer<String, String>(settings);
        List<Future<RecordMetadata>> sent = new ArrayList<Future<RecordMetadata>>();
        int count = Integer.parseInt(words[3]);
        for (int i = 0; i < count; i++) {
            sent.add(producer.send(new ProducerRecord<String, String>(words[1], 0, "k" + i, words[4] + i)));
        }
        StringBuilder offsets = new StringBuilder();
        for (Future<RecordMetadata> one : sent) {
            offsets.append(offsets.length() == 0 ? "" : ",").append(one.get(30, TimeUnit.SECONDS).offset());
        }
        producer.close();
        return offsets.toString();
    }
}
