// QuotaJudge: what Apache's own Rate and TokenBucket make of a client's use. Asked by tests/judges/test_quota_rates.py.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;

final class QuotaJudge {
    private QuotaJudge() {
    }

    // {windows, window_ms, bound, uses: [[ms, amount], ...]}: after each use the rate, how long it is taken over, and
    // the tokens that are left.
    static void rates(JsonNode asked, ObjectNode result) {
        MetricConfig config = new MetricConfig()
            .samples(asked.get("windows").asInt())
            .timeWindow(asked.get("window_ms").asLong(), TimeUnit.MILLISECONDS)
            .quota(new Quota(asked.get("bound").asDouble(), true));
        Rate rate = new Rate();
        TokenBucket bucket = new TokenBucket();
        ArrayNode told = result.putArray("told");
        for (JsonNode use : asked.get("uses")) {
            long nowMs = use.get(0).asLong();
            rate.record(config, use.get(1).asDouble(), nowMs);
            bucket.record(config, use.get(1).asDouble(), nowMs);
            ArrayNode one = told.addArray();
            one.add(rate.measure(config, nowMs));
            one.add(rate.windowSize(config, nowMs));
            one.add(bucket.measure(config, nowMs));
        }
    }
}
