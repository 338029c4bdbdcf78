import java.io.File;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import kafka.log.Cleaner;
import kafka.log.LogToClean;
import kafka.log.UnifiedLog;
import kafka.server.BrokerTopicStats;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.utils.Throttler;
import scala.Option;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/** Apache's cleaner on one partition's folder: FOLDER SETTING=VALUE... Prints milliseconds and two offsets: clean to, end. */
public final class CleanLog {
    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        settings.put("cleanup.policy", "compact");
        for (int at = 1; at < words.length; at++) {
            String[] pair = words[at].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        File folder = new File(words[0]);
        UnifiedLog log = UnifiedLog.apply(folder, new LogConfig(settings), 0L, 0L, scheduler, new BrokerTopicStats(false),
            Time.SYSTEM, 900_000, new ProducerStateManagerConfig(Integer.MAX_VALUE, false), 600_000,
            new LogDirFailureChannel(1), true, Option.empty(), true, new ConcurrentHashMap<>(), false,
            LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
        log.updateHighWatermark(log.logEndOffset());
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", Time.SYSTEM);
        Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(128 << 20), 524288 / 2, 128 << 20, 0.9, throttler,
            Time.SYSTEM, new AbstractFunction1<TopicPartition, BoxedUnit>() {
                @Override
                public BoxedUnit apply(TopicPartition partition) {
                    return BoxedUnit.UNIT;
                }
            });
        TopicPartition partition = UnifiedLog.parseTopicPartitionName(folder);
        long uncleanable = Math.min(log.lastStableOffset(), log.activeSegment().baseOffset());
        long began = System.nanoTime();
        Object end = cleaner.clean(new LogToClean(partition, log, log.logStartOffset(), uncleanable, false))._1();
        System.out.println((System.nanoTime() - began) / 1_000_000 + " " + end + " " + log.logEndOffset());
        log.close();
        scheduler.shutdown();
        System.exit(0);
    }
}
