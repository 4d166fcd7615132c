/* The client of bench/smoke.py: librdkafka, so that the client is not what is measured.
 *
 *   client produce HOST:PORT TOPIC COUNT SIZE [NAME=VALUE ...]
 *   client consume HOST:PORT TOPIC COUNT [NAME=VALUE ...]
 *
 * One topic, partition 0. `consume` starts over from the beginning at the end of the log until it has COUNT messages, by
 * the simple consumer, which needs no group. NAME=VALUE are librdkafka's settings. Prints one JSON object: messages,
 * bytes of their values, seconds from the first message asked for (the connection stands by then) to the last one done.
 */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static long long failed, messages, bytes, wanted;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what, const char *why) {
    fprintf(stderr, "client: %s: %s\n", what, why);
    exit(1);
}

/* Only failed deliveries are reported (delivery.report.only.error): a report for each would cost more than the sending. */
static void delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err && !failed++)
        fprintf(stderr, "client: delivery: %s\n", rd_kafka_err2str(message->err));
}

static void consumed(rd_kafka_message_t *message, void *opaque) {
    (void)opaque;
    if (message->err)
        die("consume", rd_kafka_message_errstr(message));
    else if (messages < wanted) {
        messages++;
        bytes += (long long)message->len;
    }
}

/* Ask for the topic until it has a partition: a broker that creates topics on demand may need a moment. */
static void wait_for_topic(rd_kafka_t *rk, rd_kafka_topic_t *topic) {
    double deadline = now() + 30;
    for (;;) {
        const struct rd_kafka_metadata *metadata;
        rd_kafka_resp_err_t error = rd_kafka_metadata(rk, 0, topic, &metadata, 5000);
        if (!error) {
            int partitions = metadata->topic_cnt == 1 ? metadata->topics[0].partition_cnt : 0;
            rd_kafka_metadata_destroy(metadata);
            if (partitions)
                return;
        }
        if (now() > deadline)
            die("metadata", error ? rd_kafka_err2str(error) : "the topic has no partition after 30 s");
        rd_kafka_poll(rk, 50);
    }
}

static void produce(rd_kafka_t *rk, rd_kafka_topic_t *topic, size_t size) {
    char *value = malloc(size ? size : 1);
    for (size_t i = 0; i < size; i++)
        value[i] = (char)('a' + i % 26);
    while (messages < wanted) {
        if (rd_kafka_produce(topic, 0, 0, value, size, NULL, 0, NULL) == 0) {
            messages++;
            bytes += (long long)size;
        } else if (rd_kafka_last_error() == RD_KAFKA_RESP_ERR__QUEUE_FULL)
            rd_kafka_poll(rk, 5);
        else
            die("produce", rd_kafka_err2str(rd_kafka_last_error()));
    }
    if (rd_kafka_flush(rk, 300000) || failed)
        die("produce", failed ? "deliveries failed" : "not all was acknowledged within 300 s");
    free(value);
}

/* By count and not by the end-of-partition event: that comes with an empty fetch, which waits on the broker. */
static void consume(rd_kafka_t *rk, rd_kafka_topic_t *topic) {
    int64_t low, high;
    rd_kafka_resp_err_t error = rd_kafka_query_watermark_offsets(rk, rd_kafka_topic_name(topic), 0, &low, &high, 10000);
    if (error || high == low)
        die("consume", error ? rd_kafka_err2str(error) : "the log is empty");
    while (messages < wanted) {
        long long end = messages + (high - low) < wanted ? messages + (high - low) : wanted;
        if (rd_kafka_consume_start(topic, 0, low))
            die("consume", rd_kafka_err2str(rd_kafka_last_error()));
        while (messages < end)
            if (rd_kafka_consume_callback(topic, 0, 30000, consumed, NULL) <= 0)
                die("consume", "nothing came for 30 s");
        rd_kafka_consume_stop(topic, 0);
    }
}

int main(int argc, char **argv) {
    int producing = argc > 1 && !strcmp(argv[1], "produce");
    int first = producing ? 6 : 5;
    char why[512];
    if (argc < first || (!producing && strcmp(argv[1], "consume"))) {
        fprintf(stderr, "usage: client produce HOST:PORT TOPIC COUNT SIZE [NAME=VALUE ...]\n"
                        "       client consume HOST:PORT TOPIC COUNT [NAME=VALUE ...]\n");
        return 2;
    }
    wanted = atoll(argv[4]);

    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "bootstrap.servers", argv[2], why, sizeof why);
    if (producing) {
        rd_kafka_conf_set(conf, "delivery.report.only.error", "true", why, sizeof why);
        rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    }
    for (int i = first; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (!equals)
            die(argv[i], "is not NAME=VALUE");
        *equals = 0;
        if (rd_kafka_conf_set(conf, argv[i], equals + 1, why, sizeof why) != RD_KAFKA_CONF_OK)
            die("setting", why);
    }
    rd_kafka_t *rk = rd_kafka_new(producing ? RD_KAFKA_PRODUCER : RD_KAFKA_CONSUMER, conf, why, sizeof why);
    if (!rk)
        die("start", why);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[3], NULL);
    wait_for_topic(rk, topic);

    double start = now();
    if (producing)
        produce(rk, topic, (size_t)atoll(argv[5]));
    else
        consume(rk, topic);
    printf("{\"messages\": %lld, \"bytes\": %lld, \"seconds\": %.6f, \"librdkafka\": \"%s\"}\n", messages, bytes,
           now() - start, rd_kafka_version_str());
    fflush(stdout);
    /* The process ends here: tearing the client down would only wait. */
    _Exit(0);
}
