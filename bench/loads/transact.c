/* Transactional producers on librdkafka, for bench/transactions.py.
 *
 *   transact SERVERS PREFIX PRODUCERS WARM SECONDS MESSAGES SIZE PARTITIONS GROUP TOPIC...
 *
 * Each of PRODUCERS threads has a producer whose transactional id begins with PREFIX, and runs one transaction after the
 * other: MESSAGES messages of SIZE bytes, in turn for PARTITIONS partitions of each topic; GROUP, unless it is "-", gets
 * an offset for each partition in the transaction. After WARM seconds it prints "begin", after SECONDS more "end", then
 * one JSON object: transactions that were committed within SECONDS, those that were aborted in all, and percentiles in
 * seconds of the commit and of the whole transaction.
 */
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST 1000000

static char **words;
static int topics, partitions, messages;
static size_t size;
static atomic_int ready, measuring, ended;
static atomic_long aborted, taken;
static double *commits, *wholes;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what, const char *why) {
    fprintf(stderr, "transact: %s: %s\n", what, why);
    _Exit(1);
}

/* Return whether the transaction may go on; a producer that is lost ends the program. */
static int passed(rd_kafka_t *rk, const char *what, rd_kafka_error_t *error) {
    if (!error)
        return 1;
    if (rd_kafka_error_is_fatal(error) || !rd_kafka_error_txn_requires_abort(error))
        die(what, rd_kafka_error_string(error));
    rd_kafka_error_destroy(error);
    aborted++;
    error = rd_kafka_abort_transaction(rk, -1);
    if (error)
        die("abort", rd_kafka_error_string(error));
    return 0;
}

static rd_kafka_t *started(long number) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char why[512], id[256];
    snprintf(id, sizeof id, "%s-%ld", words[2], number);
    rd_kafka_conf_set(conf, "bootstrap.servers", words[1], why, sizeof why);
    rd_kafka_conf_set(conf, "transactional.id", id, why, sizeof why);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
    if (!rk)
        die("start", why);
    rd_kafka_error_t *error = rd_kafka_init_transactions(rk, 60000);
    if (error)
        die("init", rd_kafka_error_string(error));
    return rk;
}

static int sent_offsets(rd_kafka_t *rk, rd_kafka_consumer_group_metadata_t *group, int64_t offset) {
    rd_kafka_topic_partition_list_t *offsets = rd_kafka_topic_partition_list_new(topics * partitions);
    for (int topic = 0; topic < topics; topic++)
        for (int index = 0; index < partitions; index++)
            rd_kafka_topic_partition_list_add(offsets, words[10 + topic], index)->offset = offset;
    rd_kafka_error_t *error = rd_kafka_send_offsets_to_transaction(rk, offsets, group, -1);
    rd_kafka_topic_partition_list_destroy(offsets);
    return passed(rk, "offsets", error);
}

static void *producer(void *argument) {
    rd_kafka_t *rk = started((long)argument);
    rd_kafka_topic_t *handles[16];
    for (int topic = 0; topic < topics; topic++)
        handles[topic] = rd_kafka_topic_new(rk, words[10 + topic], NULL);
    rd_kafka_consumer_group_metadata_t *group =
        strcmp(words[9], "-") ? rd_kafka_consumer_group_metadata_new(words[9]) : NULL;
    char *value = malloc(size);
    memset(value, 'v', size);
    ready++;
    for (int64_t done = 0; !ended; done++) {
        double begun = now();
        rd_kafka_error_t *error = rd_kafka_begin_transaction(rk);
        if (error)
            die("begin", rd_kafka_error_string(error));
        for (int number = 0; number < messages; number++) {
            int at = number % (partitions * topics);
            while (rd_kafka_produce(handles[at % topics], at / topics, 0, value, size, NULL, 0, NULL)) {
                if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                    die("produce", rd_kafka_err2str(rd_kafka_last_error()));
                rd_kafka_poll(rk, 5);
            }
        }
        if (group && !sent_offsets(rk, group, done))
            continue;
        double committing = now();
        if (!passed(rk, "commit", rd_kafka_commit_transaction(rk, -1)))
            continue;
        double end = now();
        if (measuring) {
            long place = taken++;
            if (place < MOST) {
                commits[place] = end - committing;
                wholes[place] = end - begun;
            }
        }
    }
    return NULL;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at(const double *values, long count, int percent) {
    return count ? values[count * percent / 100 < count ? count * percent / 100 : count - 1] : 0;
}

int main(int argc, char **argv) {
    if (argc < 11 || argc > 26) {
        fprintf(stderr, "usage: transact SERVERS PREFIX PRODUCERS WARM SECONDS MESSAGES SIZE PARTITIONS GROUP TOPIC...\n");
        return 2;
    }
    words = argv;
    topics = argc - 10;
    messages = atoi(argv[6]);
    size = (size_t)atol(argv[7]);
    partitions = atoi(argv[8]);
    commits = malloc(sizeof *commits * MOST);
    wholes = malloc(sizeof *wholes * MOST);
    long count = atol(argv[3]);
    pthread_t *threads = malloc(sizeof *threads * (size_t)count);
    for (long number = 0; number < count; number++)
        pthread_create(&threads[number], NULL, producer, (void *)number);
    while (ready < count)
        usleep(1000);
    usleep((useconds_t)(atof(argv[4]) * 1e6));
    measuring = 1;
    printf("begin\n");
    fflush(stdout);
    double begun = now();
    usleep((useconds_t)(atof(argv[5]) * 1e6));
    measuring = 0;
    double seconds = now() - begun;
    printf("end\n");
    fflush(stdout);
    ended = 1;
    for (long number = 0; number < count; number++)
        pthread_join(threads[number], NULL);
    long found = taken < MOST ? taken : MOST;
    qsort(commits, (size_t)found, sizeof *commits, ascending);
    qsort(wholes, (size_t)found, sizeof *wholes, ascending);
    printf("{\"transactions\": %ld, \"seconds\": %.6f, \"aborted\": %ld, \"commit_p50\": %.6f, \"commit_p99\": %.6f, "
           "\"whole_p50\": %.6f, \"whole_p99\": %.6f}\n",
           found, seconds, (long)aborted, at(commits, found, 50), at(commits, found, 99), at(wholes, found, 50),
           at(wholes, found, 99));
    fflush(stdout);
    _Exit(0); /* destroying the producers would only wait */
}
