/* The client of bench/smoke.py and make bench, on librdkafka so that the client is not the bottleneck.
 *
 *   client produce HOST:PORT TOPIC COUNT SIZE [NAME=VALUE ...]
 *   client consume HOST:PORT TOPIC COUNT [NAME=VALUE ...]
 *   client latency HOST:PORT TOPIC COUNT SIZE RATE [NAME=VALUE ...]
 *
 * One topic, partition 0; with bench.partitions=N `produce` uses N partitions in turn, and `consume` reads all of them.
 * With bench.values=FILE the values are the file's lines, in turn. With bench.offset=N `consume` begins at that offset,
 * and waits for messages that are not there yet. `latency` sends RATE messages a second (0: all are due at once), reads
 * them with a second client, and prints percentiles, in seconds, of the time from when a message was due to when it was
 * read. So a message that had to wait in the client counts with its wait, and a broker that stalls delays all that were
 * due meanwhile, not one (no coordinated omission). Messages of other clients are skipped. `consume` uses the simple
 * consumer, which needs no group, and starts over at the end of the log until it has COUNT messages. NAME=VALUE are
 * librdkafka's settings. Prints one JSON object: messages, bytes of their values, seconds from the first message to the
 * last one (connecting not included), and when they began.
 */
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long long failed, messages, bytes, wanted;
static double began;
static int partitions = 1;
static const char *values;
static long long offset = -1;

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
            int found = metadata->topic_cnt == 1 ? metadata->topics[0].partition_cnt : 0;
            rd_kafka_metadata_destroy(metadata);
            if (found >= partitions)
                return;
        }
        if (now() > deadline)
            die("metadata", error ? rd_kafka_err2str(error) : "the topic lacks partitions after 30 s");
        rd_kafka_poll(rk, 50);
    }
}

typedef struct Value {
    char *data;
    size_t size;
} Value;

/* Return the lines of a file, and how many they are. */
static Value *lines(const char *path, size_t *count) {
    FILE *file = fopen(path, "r");
    Value *found = NULL;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t size;
    if (!file)
        die(path, "can't be opened");
    for (*count = 0; (size = getline(&line, &capacity, file)) > 0; line = NULL, capacity = 0) {
        if (!(*count & (*count + 1)) && (found = realloc(found, 2 * (*count + 1) * sizeof *found)) == NULL)
            die(path, "there is not enough memory");
        found[(*count)++] = (Value){line, (size_t)size - (line[size - 1] == '\n')};
    }
    if (!*count)
        die(path, "has no lines");
    return found;
}

static void produce(rd_kafka_t *rk, rd_kafka_topic_t *topic, size_t size) {
    Value one = {malloc(size ? size : 1), size}, *all = &one;
    size_t count = 1;
    for (size_t i = 0; i < size; i++)
        one.data[i] = (char)('a' + i % 26);
    if (values)
        all = lines(values, &count);
    double start = now();
    while (messages < wanted) {
        Value *value = &all[(size_t)messages % count];
        int32_t partition = (int32_t)(messages % partitions);
        if (rd_kafka_produce(topic, partition, 0, value->data, value->size, NULL, 0, NULL) == 0) {
            messages++;
            bytes += (long long)value->size;
        } else if (rd_kafka_last_error() == RD_KAFKA_RESP_ERR__QUEUE_FULL)
            rd_kafka_poll(rk, 5);
        else
            die("produce", rd_kafka_err2str(rd_kafka_last_error()));
    }
    if (rd_kafka_flush(rk, 300000) || failed)
        die("produce", failed ? "deliveries failed" : "not all was acknowledged within 300 s");
    began = start;
}

/* Ends by count: the end-of-partition event comes with an empty fetch, for which the broker would wait. */
static void consume(rd_kafka_t *rk, rd_kafka_topic_t *topic) {
    int64_t low, high;
    rd_kafka_resp_err_t error;
    double deadline = now() + 60; /* a broker that has just started may not lead the partition yet */
    while ((error = rd_kafka_query_watermark_offsets(rk, rd_kafka_topic_name(topic), 0, &low, &high, 10000)) != 0
           && now() < deadline)
        usleep(10000);
    if (error || (high == low && offset < 0))
        die("consume", error ? rd_kafka_err2str(error) : "the log is empty");
    began = now();
    while (messages < wanted) {
        long long end = messages + (high - low) < wanted ? messages + (high - low) : wanted;
        if (rd_kafka_consume_start(topic, 0, offset < 0 ? low : offset))
            die("consume", rd_kafka_err2str(rd_kafka_last_error()));
        while (messages < (offset < 0 ? end : wanted))
            if (rd_kafka_consume_callback(topic, 0, 30000, consumed, NULL) <= 0)
                die("consume", "nothing came for 30 s");
        rd_kafka_consume_stop(topic, 0);
    }
}

/* Read all partitions from their begin by one queue, more than once if they have not enough. */
static void consume_all(rd_kafka_t *rk, rd_kafka_topic_t *topic) {
    began = now();
    while (messages < wanted) {
        rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
        long long before = messages;
        for (int32_t i = 0; i < partitions; i++)
            if (rd_kafka_consume_start_queue(topic, i, RD_KAFKA_OFFSET_BEGINNING, queue))
                die("consume", rd_kafka_err2str(rd_kafka_last_error()));
        while (messages < wanted && rd_kafka_consume_callback_queue(queue, messages > before ? 500 : 30000, consumed, NULL) > 0)
            ;
        if (messages == before)
            die("consume", "nothing came for 30 s");
        for (int32_t i = 0; i < partitions && messages < wanted; i++)
            rd_kafka_consume_stop(topic, i);
        rd_kafka_queue_destroy(queue);
    }
}

static rd_kafka_t *client(rd_kafka_type_t type, char **settings, const char *servers) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char why[512];
    rd_kafka_conf_set(conf, "bootstrap.servers", servers, why, sizeof why);
    if (type == RD_KAFKA_PRODUCER) {
        rd_kafka_conf_set(conf, "delivery.report.only.error", "true", why, sizeof why);
        rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    }
    for (; *settings; settings++) {
        char name[256], *equals = strchr(*settings, '=');
        if (!equals || equals - *settings >= (long)sizeof name)
            die(*settings, "is not NAME=VALUE");
        snprintf(name, sizeof name, "%.*s", (int)(equals - *settings), *settings);
        if (!strcmp(name, "bench.partitions"))
            partitions = atoi(equals + 1);
        else if (!strcmp(name, "bench.values"))
            values = equals + 1;
        else if (!strcmp(name, "bench.offset"))
            offset = atoll(equals + 1);
        else if (rd_kafka_conf_set(conf, name, equals + 1, why, sizeof why) != RD_KAFKA_CONF_OK)
            die("setting", why);
    }
    rd_kafka_t *rk = rd_kafka_new(type, conf, why, sizeof why);
    if (!rk)
        die("start", why);
    return rk;
}

/* Latency: the value begins with the time at which it was due. 0 is a probe, repeated until the reader receives one. */
enum { LONGEST = 3600 };
static double *taken;
static atomic_llong seen;
static atomic_int ready;

static void stamped(rd_kafka_message_t *message, void *opaque) {
    double stamp;
    (void)opaque;
    if (message->err)
        die("consume", rd_kafka_message_errstr(message));
    memcpy(&stamp, message->payload, sizeof stamp);
    double delay = now() - stamp;
    if (stamp == 0)
        ready = 1;
    else if (delay >= 0 && delay < LONGEST && seen < wanted) /* else it is another client's message */
        taken[seen++] = delay;
}

static void *read_stamped(void *opaque) {
    for (;;)
        rd_kafka_consume_callback(opaque, 0, 1000, stamped, NULL);
    return NULL;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void put_stamped(rd_kafka_t *rk, rd_kafka_topic_t *topic, char *value, size_t size, double stamp) {
    memcpy(value, &stamp, sizeof stamp);
    while (rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, value, size, NULL, 0, NULL))
        rd_kafka_poll(rk, 1);
}

static void latency(rd_kafka_t *rk, rd_kafka_topic_t *topic, rd_kafka_topic_t *reading, size_t size, double rate) {
    char *value = calloc(1, size < 8 ? size = 8 : size);
    pthread_t reader;
    taken = malloc(sizeof *taken * (size_t)wanted);
    if (rd_kafka_consume_start(reading, 0, RD_KAFKA_OFFSET_END))
        die("consume", rd_kafka_err2str(rd_kafka_last_error()));
    pthread_create(&reader, NULL, read_stamped, reading);
    for (double end = now() + 30; !ready; usleep(20000)) {
        put_stamped(rk, topic, value, size, 0);
        if (now() > end)
            die("consume", "nothing came for 30 s");
    }
    double start = now();
    for (long long i = 0; i < wanted; i++) {
        double due = rate > 0 ? start + (double)i / rate : start;
        for (double left; (left = due - now()) > 0;)
            usleep(left > 1e-3 ? 1000 : (useconds_t)(left * 1e6));
        put_stamped(rk, topic, value, size, due);
        if (i % 64 == 0)
            rd_kafka_poll(rk, 0);
    }
    if (rd_kafka_flush(rk, 300000) || failed)
        die("produce", "deliveries failed");
    for (double end = now() + 30; seen < wanted; usleep(1000))
        if (now() > end)
            die("consume", "messages did not come back within 30 s");
    double seconds = now() - start;
    long long warm = wanted / 10, count = wanted - warm;
    qsort(taken + warm, (size_t)count, sizeof *taken, ascending);
    printf("{\"messages\": %lld, \"bytes\": %lld, \"seconds\": %.6f, \"p50\": %.6f, \"p99\": %.6f, \"p999\": %.6f, "
           "\"highest\": %.6f, \"librdkafka\": \"%s\"}\n",
           wanted, wanted * (long long)size, seconds, taken[warm + count / 2], taken[warm + count * 99 / 100],
           taken[warm + count * 999 / 1000], taken[wanted - 1], rd_kafka_version_str());
}

int main(int argc, char **argv) {
    int producing = argc > 1 && !strcmp(argv[1], "produce"), timing = argc > 1 && !strcmp(argv[1], "latency");
    int first = timing ? 7 : producing ? 6 : 5;
    if (argc < first || (!producing && !timing && strcmp(argv[1], "consume"))) {
        fprintf(stderr, "usage: client produce HOST:PORT TOPIC COUNT SIZE [NAME=VALUE ...]\n"
                        "       client consume HOST:PORT TOPIC COUNT [NAME=VALUE ...]\n"
                        "       client latency HOST:PORT TOPIC COUNT SIZE RATE [NAME=VALUE ...]\n");
        return 2;
    }
    wanted = atoll(argv[4]);
    rd_kafka_t *rk = client(producing || timing ? RD_KAFKA_PRODUCER : RD_KAFKA_CONSUMER, argv + first, argv[2]);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[3], NULL);
    wait_for_topic(rk, topic);
    if (timing) {
        char *none[] = {NULL};
        rd_kafka_t *other = client(RD_KAFKA_CONSUMER, none, argv[2]);
        latency(rk, topic, rd_kafka_topic_new(other, argv[3], NULL), (size_t)atoll(argv[5]), atof(argv[6]));
        fflush(stdout);
        _Exit(0);
    }

    if (producing)
        produce(rk, topic, (size_t)atoll(argv[5]));
    else if (partitions > 1)
        consume_all(rk, topic);
    else
        consume(rk, topic);
    printf("{\"messages\": %lld, \"bytes\": %lld, \"seconds\": %.6f, \"began\": %.6f, \"librdkafka\": \"%s\"}\n", messages,
           bytes, now() - began, began, rd_kafka_version_str());
    fflush(stdout);
    /* The process ends here, since destroying the client would only wait. */
    _Exit(0);
}
