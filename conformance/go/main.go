// franz-go and sarama against a broker: conformance HOST:PORT; franz-go with a file of tasks: conformance --tasks FILE;
// franz-go as it is told: conformance --transacting HOST:PORT.
// Prints `ok NAME` and `not ok NAME: REASON` lines.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var failures int

func check(name string, seconds int, work func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(seconds)*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	var err error
	select {
	case err = <-done:
	case <-time.After(time.Duration(seconds+5) * time.Second):
		err = fmt.Errorf("not done after %d s", seconds+5)
	}
	if err == nil {
		fmt.Printf("ok %s\n", name)
		return
	}
	failures++
	fmt.Printf("not ok %s: %s\n", name, strings.Split(err.Error(), "\n")[0])
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "--tasks" {
		secured(os.Args[2])
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "--transacting" {
		transacting(os.Args[2])
		return
	}
	if len(os.Args) > 2 && (os.Args[1] == "--lags" || os.Args[1] == "--push") {
		metrics(os.Args[1:])
		return
	}
	address := os.Args[1]
	suffix := fmt.Sprintf("%x", time.Now().UnixNano())
	franz(address, "franz-"+suffix)
	sarama_(address, "sarama-"+suffix)
	if failures > 0 {
		os.Exit(1)
	}
}

func records(topic string, partition int32, count int) []*kgo.Record {
	out := make([]*kgo.Record, count)
	for n := range out {
		out[n] = &kgo.Record{
			Topic: topic, Partition: partition,
			Key: fmt.Appendf(nil, "k%d", n%7), Value: fmt.Appendf(nil, "value %d", n),
			Headers:   []kgo.RecordHeader{{Key: "trace", Value: fmt.Appendf(nil, "t%d", n)}},
			Timestamp: time.UnixMilli(1700000000000 + int64(n)),
		}
	}
	return out
}

// read returns count records of a partition from an offset, by direct assignment.
func read(ctx context.Context, address, topic string, partition int32, at kgo.Offset, count int) ([]*kgo.Record, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(address),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: at}}))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var out []*kgo.Record
	for len(out) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("%d of %d records came: %w", len(out), count, err)
		}
		out = append(out, fetches.Records()...)
	}
	return out[:count], nil
}

func same(found []*kgo.Record, first int) error {
	for n, record := range found {
		want := first + n
		if string(record.Value) != fmt.Sprintf("value %d", want) || string(record.Key) != fmt.Sprintf("k%d", want%7) ||
			len(record.Headers) != 1 || string(record.Headers[0].Value) != fmt.Sprintf("t%d", want) ||
			record.Timestamp.UnixMilli() != 1700000000000+int64(want) {
			return fmt.Errorf("record %d came as %q %q", want, record.Key, record.Value)
		}
	}
	return nil
}

func franz(address, topic string) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		fmt.Printf("not ok franz-go, connect: %s\n", err)
		failures++
		return
	}
	defer client.Close()
	admin := kadm.NewClient(client)

	check("franz-go, create a topic with configs", 20, func(ctx context.Context) error {
		retention := "7200000"
		made, err := admin.CreateTopic(ctx, 6, 1, map[string]*string{"retention.ms": &retention}, topic)
		if err == nil && made.NumPartitions != 6 {
			return fmt.Errorf("%d partitions", made.NumPartitions)
		}
		return err
	})
	partition := int32(0)
	for _, name := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		check("franz-go, idempotent produce and consume, "+name, 20, func(ctx context.Context) error {
			producer, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.RecordPartitioner(kgo.ManualPartitioner()),
				kgo.ProducerBatchCompression(codecs[name]))
			if err != nil {
				return err
			}
			defer producer.Close()
			if err := producer.ProduceSync(ctx, records(topic, partition, 300)...).FirstErr(); err != nil {
				return err
			}
			found, err := read(ctx, address, topic, partition, kgo.NewOffset().AtStart(), 300)
			if err != nil {
				return err
			}
			return same(found, 0)
		})
		partition++
	}
	check("franz-go, produce with acks 0 and 1", 20, func(ctx context.Context) error {
		for _, acks := range []kgo.Acks{kgo.NoAck(), kgo.LeaderAck()} {
			producer, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.RequiredAcks(acks), kgo.DisableIdempotentWrite(),
				kgo.RecordPartitioner(kgo.ManualPartitioner()))
			if err != nil {
				return err
			}
			err = producer.ProduceSync(ctx, records(topic, 5, 100)...).FirstErr()
			producer.Close()
			if err != nil {
				return err
			}
		}
		_, err := read(ctx, address, topic, 5, kgo.NewOffset().AtStart(), 200)
		return err
	})
	check("franz-go, consume from an offset and from a time", 20, func(ctx context.Context) error {
		found, err := read(ctx, address, topic, 0, kgo.NewOffset().At(250), 50)
		if err == nil {
			err = same(found, 250)
		}
		if err != nil {
			return err
		}
		found, err = read(ctx, address, topic, 0, kgo.NewOffset().AfterMilli(1700000000123), 10)
		if err != nil {
			return err
		}
		return same(found, 123)
	})
	check("franz-go, list offsets", 20, func(ctx context.Context) error {
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		end, found := ends.Lookup(topic, 0)
		if !found || end.Err != nil || end.Offset != 300 {
			return fmt.Errorf("the end offset came as %d: %v", end.Offset, end.Err)
		}
		return nil
	})
	check("franz-go, describe and alter configs", 20, func(ctx context.Context) error {
		value := "1000000"
		done, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "max.message.bytes", Value: &value}}, topic)
		if err != nil {
			return err
		}
		if err := done[0].Err; err != nil {
			return err
		}
		configs, err := admin.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return err
		}
		for _, config := range configs[0].Configs {
			if config.Key == "max.message.bytes" && config.MaybeValue() == value {
				return nil
			}
		}
		return errors.New("the change is not described")
	})
	check("franz-go, add partitions, delete records", 20, func(ctx context.Context) error {
		added, err := admin.UpdatePartitions(ctx, 8, topic)
		if err != nil {
			return err
		}
		if err := added.Error(); err != nil {
			return err
		}
		cut := kadm.Offsets{}
		cut.Add(kadm.Offset{Topic: topic, Partition: 0, At: 100, LeaderEpoch: -1})
		if _, err := admin.DeleteRecords(ctx, cut); err != nil {
			return err
		}
		starts, err := admin.ListStartOffsets(ctx, topic)
		if err != nil {
			return err
		}
		if start, _ := starts.Lookup(topic, 0); start.Offset != 100 {
			return fmt.Errorf("the start offset came as %d", start.Offset)
		}
		return nil
	})
	check("franz-go, brokers and log directories", 20, func(ctx context.Context) error {
		if _, err := admin.BrokerMetadata(ctx); err != nil {
			return err
		}
		directories, err := admin.DescribeAllLogDirs(ctx, nil)
		if err != nil {
			return err
		}
		if len(directories) != 1 {
			return fmt.Errorf("%d brokers answered", len(directories))
		}
		for _, directory := range directories {
			if err := directory.Error(); err != nil {
				return err
			}
		}
		return nil
	})
	check("franz-go, long poll woken by a record", 30, func(ctx context.Context) error {
		consumer, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.FetchMaxWait(5*time.Minute),
			kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {6: kgo.NewOffset().AtStart()}}))
		if err != nil {
			return err
		}
		defer consumer.Close()
		short, cancel := context.WithTimeout(ctx, time.Second)
		consumer.PollFetches(short)
		cancel()
		if err := client.ProduceSync(ctx, records(topic, 6, 1)...).FirstErr(); err != nil {
			return err
		}
		return consumer.PollFetches(ctx).Err()
	})
	check("franz-go, consume as a group", 20, func(ctx context.Context) error {
		consumer, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if err != nil {
			return err
		}
		defer consumer.CloseAllowingRebalance()
		if err := consumer.PollFetches(ctx).Err(); err != nil {
			return err
		}
		return consumer.CommitUncommittedOffsets(ctx)
	})
	check("franz-go, delete a topic", 20, func(ctx context.Context) error {
		_, err := admin.DeleteTopic(ctx, topic)
		return err
	})
}

func sarama_(address, topic string) {
	config := func() *sarama.Config {
		config := sarama.NewConfig()
		config.Version = sarama.V3_6_0_0
		config.Producer.Return.Successes = true
		config.Producer.Partitioner = sarama.NewManualPartitioner
		config.Metadata.Retry.Max = 2
		return config
	}
	brokers := []string{address}
	check("sarama, create a topic", 20, func(context.Context) error {
		admin, err := sarama.NewClusterAdmin(brokers, config())
		if err != nil {
			return err
		}
		defer admin.Close()
		return admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 6, ReplicationFactor: 1}, false)
	})
	codecs := []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
	}
	for number, codec := range codecs {
		partition := int32(number)
		check("sarama, produce and consume, "+codec.String(), 20, func(ctx context.Context) error {
			settings := config()
			settings.Producer.Compression = codec
			client, err := sarama.NewClient(brokers, settings)
			if err != nil {
				return err
			}
			defer client.Close()
			producer, err := sarama.NewSyncProducerFromClient(client)
			if err != nil {
				return err
			}
			var messages []*sarama.ProducerMessage
			for n := range 200 {
				messages = append(messages, &sarama.ProducerMessage{
					Topic: topic, Partition: partition, Value: sarama.StringEncoder(fmt.Sprintf("value %d", n)),
					Headers: []sarama.RecordHeader{{Key: []byte("trace"), Value: []byte("t")}},
				})
			}
			if err := producer.SendMessages(messages); err != nil {
				return err
			}
			consumer, err := sarama.NewConsumerFromClient(client)
			if err != nil {
				return err
			}
			reading, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
			if err != nil {
				return err
			}
			defer reading.Close()
			for n := range 200 {
				select {
				case message := <-reading.Messages():
					if string(message.Value) != fmt.Sprintf("value %d", n) || len(message.Headers) != 1 {
						return fmt.Errorf("message %d came as %q", n, message.Value)
					}
				case <-ctx.Done():
					return fmt.Errorf("%d of 200 messages came", n)
				}
			}
			return nil
		})
	}
	check("sarama, idempotent producer", 20, func(context.Context) error {
		settings := config()
		settings.Producer.Idempotent = true
		settings.Producer.RequiredAcks = sarama.WaitForAll
		settings.Net.MaxOpenRequests = 1
		producer, err := sarama.NewSyncProducer(brokers, settings)
		if err != nil {
			return err
		}
		defer producer.Close()
		for n := range 50 {
			_, offset, err := producer.SendMessage(&sarama.ProducerMessage{
				Topic: topic, Partition: 5, Value: sarama.StringEncoder("x")})
			if err != nil {
				return err
			}
			if offset != int64(n) {
				return fmt.Errorf("offset %d came where %d was due", offset, n)
			}
		}
		return nil
	})
	check("sarama, describe configs and delete the topic", 20, func(context.Context) error {
		admin, err := sarama.NewClusterAdmin(brokers, config())
		if err != nil {
			return err
		}
		defer admin.Close()
		entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return errors.New("no configs came")
		}
		return admin.DeleteTopic(topic)
	})
}
