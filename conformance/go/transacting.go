// franz-go: the operations of conformance/transacting/driver.py: conformance --transacting HOST:PORT.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type positions map[string]map[string]int64

type operation struct {
	Do, Name, Id, Topic, Isolation, Group, Protocol, Pattern, Assignor, Instance string
	Timeout, Partitions, Ms                                                      int
	Partition                                                                    int32
	Values, Topics                                                               []string
	Offsets                                                                      positions
}

// member is a consumer with its partitions, which callbacks change.
type member struct {
	*kgo.Client
	group string
	alone bool // commits for the group without being a member
	lock  sync.Mutex
	has   map[string]bool
}

type transactor struct {
	address   string
	producers map[string]*kgo.Client
	consumers map[string]*member
}

var errLacks = errors.New("the client does not have it")

func transacting(address string) {
	client := transactor{address, map[string]*kgo.Client{}, map[string]*member{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		found := map[string]any{}
		var one operation
		err := json.Unmarshal(lines.Bytes(), &one)
		var answer any
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			answer, err = client.do(ctx, one)
			cancel()
		}
		switch {
		case errors.Is(err, errLacks):
			found["lacks"] = true
		case err != nil:
			fmt.Fprintf(os.Stderr, "%s: %v\n", lines.Text(), err)
			found["error"] = nameOf(err)
		default:
			found["answer"] = answer
		}
		text, _ := json.Marshal(found)
		fmt.Println(string(text))
	}
}

// nameOf returns the protocol's name of an error, or what the client says, without what differs between runs.
func nameOf(err error) string {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Message
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "deadline exceeded"
	}
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, err.Error())
}

func (t *transactor) do(ctx context.Context, one operation) (any, error) {
	switch one.Do {
	case "producer":
		return nil, t.producer(ctx, one)
	case "init":
		_, _, err := t.producers[one.Name].ProducerID(ctx)
		return nil, err
	case "begin":
		return nil, t.producers[one.Name].BeginTransaction()
	case "commit":
		return nil, t.producers[one.Name].EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		if err := t.producers[one.Name].AbortBufferedRecords(ctx); err != nil {
			return nil, err
		}
		return nil, t.producers[one.Name].EndTransaction(ctx, kgo.TryAbort)
	case "send":
		return t.send(ctx, one)
	case "close":
		return nil, t.close(one)
	case "read":
		return t.read(ctx, one)
	case "ends":
		return t.ends(ctx, one)
	}
	return t.inGroup(ctx, one)
}

func (t *transactor) inGroup(ctx context.Context, one operation) (any, error) {
	switch one.Do {
	case "consumer":
		return nil, t.consumer(one)
	case "poll":
		return t.poll(ctx, one)
	case "assignment":
		return t.consumers[one.Name].assignment(), nil
	case "commit_offsets":
		return nil, t.commitOffsets(ctx, one)
	case "committed":
		return t.committed(ctx, one)
	case "describe_transaction":
		return t.describeTransaction(ctx, one)
	case "describe_producers":
		return t.describeProducers(ctx, one)
	case "describe_group":
		return t.describeGroup(ctx, one)
	}
	// Offsets are added to transactions by sessions (GroupTransactSession), which franz-go's own TestTxnEtl uses.
	return nil, errLacks
}

func (t *transactor) client(more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(t.address)}, more...)...)
}

// producer waits until the client knows which version of transactions the cluster uses: it asks when it begins one.
func (t *transactor) producer(ctx context.Context, one operation) error {
	made, err := t.client(kgo.TransactionalID(one.Id), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.TransactionTimeout(time.Duration(one.Timeout)*time.Millisecond), kgo.RecordDeliveryTimeout(20*time.Second))
	t.producers[one.Name] = made
	if err != nil {
		return err
	}
	return made.Ping(ctx)
}

func (t *transactor) send(ctx context.Context, one operation) (any, error) {
	var records []*kgo.Record
	for _, value := range one.Values {
		records = append(records, &kgo.Record{Topic: one.Topic, Partition: one.Partition, Value: []byte(value)})
	}
	results := t.producers[one.Name].ProduceSync(ctx, records...)
	var offsets []int64
	for _, record := range records {
		offsets = append(offsets, record.Offset)
	}
	return offsets, results.FirstErr()
}

func number(text string) int32 {
	found, _ := strconv.Atoi(text)
	return int32(found)
}

func (t *transactor) close(one operation) error {
	if made, known := t.consumers[one.Name]; known {
		made.CloseAllowingRebalance()
		delete(t.consumers, one.Name)
		return nil
	}
	t.producers[one.Name].Close()
	delete(t.producers, one.Name)
	return nil
}

func level(name string) kgo.IsolationLevel {
	if name == "read_committed" {
		return kgo.ReadCommitted()
	}
	return kgo.ReadUncommitted()
}

func (t *transactor) listed(ctx context.Context, one operation) (map[int32]int64, error) {
	made, err := t.client()
	if err != nil {
		return nil, err
	}
	defer made.Close()
	admin := kadm.NewClient(made)
	list := admin.ListEndOffsets
	if one.Isolation == "read_committed" {
		list = admin.ListCommittedOffsets
	}
	found, err := list(ctx, one.Topic)
	if err == nil {
		err = found.Error()
	}
	ends := map[int32]int64{}
	found.Each(func(at kadm.ListedOffset) { ends[at.Partition] = at.Offset })
	return ends, err
}

func (t *transactor) ends(ctx context.Context, one operation) (any, error) {
	found, err := t.listed(ctx, one)
	ends := map[string]int64{}
	for partition, offset := range found {
		ends[fmt.Sprint(partition)] = offset
	}
	return ends, err
}

func (t *transactor) read(ctx context.Context, one operation) (any, error) {
	left, err := t.listed(ctx, one)
	if err != nil {
		return nil, err
	}
	starts := map[int32]kgo.Offset{}
	values := map[string][]string{}
	for partition, end := range left {
		values[fmt.Sprint(partition)] = []string{}
		starts[partition] = kgo.NewOffset().AtStart()
		if end == 0 {
			delete(left, partition)
		}
	}
	reader, err := t.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{one.Topic: starts}),
		kgo.FetchIsolationLevel(level(one.Isolation)), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if !record.Attrs.IsControl() {
				values[fmt.Sprint(record.Partition)] = append(values[fmt.Sprint(record.Partition)], string(record.Value))
			}
			if end, waited := left[record.Partition]; waited && record.Offset+1 >= end {
				delete(left, record.Partition)
			}
		})
	}
	return values, nil
}

func (t *transactor) consumer(one operation) error {
	made := &member{group: one.Group, has: map[string]bool{}}
	change := func(has bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			made.lock.Lock()
			defer made.lock.Unlock()
			for topic, partitions := range changed {
				for _, partition := range partitions {
					if has {
						made.has[fmt.Sprintf("%s-%d", topic, partition)] = true
					} else {
						delete(made.has, fmt.Sprintf("%s-%d", topic, partition))
					}
				}
			}
		}
	}
	options := []kgo.Opt{kgo.ConsumerGroup(one.Group), kgo.DisableAutoCommit(), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(),
		kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)), kgo.OnPartitionsLost(change(false))}
	if one.Protocol == "consumer" {
		options = append(options, kgo.WithContext(
			context.WithValue(context.Background(), "opt_in_kafka_next_gen_balancer_beta", true)))
	} else {
		options = append(options, kgo.SessionTimeout(6*time.Second))
	}
	if one.Assignor == "range" || one.Protocol != "consumer" {
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	} else {
		options = append(options, kgo.Balancers(kgo.StickyBalancer())) // by which the client names `uniform`
	}
	if one.Instance != "" {
		options = append(options, kgo.InstanceID(one.Instance))
	}
	if one.Pattern != "" {
		options = append(options, kgo.ConsumeRegex(), kgo.ConsumeTopics(one.Pattern))
	}
	if len(one.Topics) == 0 && one.Pattern == "" {
		options, made.alone = nil, true
	}
	client, err := t.client(append(options, kgo.ConsumeTopics(one.Topics...))...)
	made.Client = client
	t.consumers[one.Name] = made
	return err
}

func (m *member) assignment() []string {
	m.lock.Lock()
	defer m.lock.Unlock()
	found := []string{}
	for place := range m.has {
		found = append(found, place)
	}
	slices.Sort(found)
	return found
}

func (t *transactor) poll(ctx context.Context, one operation) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(one.Ms)*time.Millisecond)
	defer cancel()
	fetches := t.consumers[one.Name].PollFetches(ctx)
	values := []string{}
	fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	return values, nil
}

func (t *transactor) commitOffsets(ctx context.Context, one operation) error {
	asked := map[string]map[int32]kgo.EpochOffset{}
	for topic, offsets := range one.Offsets {
		asked[topic] = map[int32]kgo.EpochOffset{}
		for partition, offset := range offsets {
			asked[topic][number(partition)] = kgo.EpochOffset{Epoch: -1, Offset: offset}
		}
	}
	committer := t.consumers[one.Name]
	if committer.alone {
		offsets := kadm.Offsets{}
		for topic, partitions := range asked {
			for partition, at := range partitions {
				offsets.AddOffset(topic, partition, at.Offset, at.Epoch)
			}
		}
		answer, err := kadm.NewClient(committer.Client).CommitOffsets(ctx, committer.group, offsets)
		return errors.Join(err, answer.Error())
	}
	var failed error
	committer.CommitOffsetsSync(ctx, asked,
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
			if failed = err; err != nil {
				return
			}
			for _, topic := range answer.Topics {
				for _, at := range topic.Partitions {
					failed = errors.Join(failed, kerr.ErrorForCode(at.ErrorCode))
				}
			}
		})
	return failed
}

func (t *transactor) admin() (*kadm.Client, error) {
	made, err := t.client()
	return kadm.NewClient(made), err
}

func (t *transactor) committed(ctx context.Context, one operation) (any, error) {
	admin, err := t.admin()
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	ctx, cancel := context.WithTimeout(ctx, 6*time.Second)
	defer cancel()
	found, err := admin.FetchOffsets(kadm.RequireStable(ctx), t.consumers[one.Name].group)
	if err == nil {
		err = found.Error()
	}
	offsets := []int64{}
	for index := range int32(one.Partitions) {
		at, known := found.Lookup(one.Topic, index)
		if known {
			offsets = append(offsets, at.At)
		} else {
			offsets = append(offsets, -1)
		}
	}
	return offsets, err
}

func (t *transactor) describeTransaction(ctx context.Context, one operation) (any, error) {
	admin, err := t.admin()
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	found, err := admin.DescribeTransactions(ctx, one.Id)
	if err == nil {
		err = found[one.Id].Err
	}
	if err != nil {
		return nil, err
	}
	listed, err := admin.ListTransactions(ctx, nil, nil)
	partitions := []string{}
	found[one.Id].Topics.Each(func(topic string, partition int32) {
		partitions = append(partitions, fmt.Sprintf("%s-%d", topic, partition))
	})
	slices.Sort(partitions)
	return map[string]any{"state": found[one.Id].State, "timeout": found[one.Id].TimeoutMillis, "partitions": partitions,
		"started": found[one.Id].StartTimestamp > 0, "listed": listed[one.Id].State}, err
}

func (t *transactor) describeProducers(ctx context.Context, one operation) (any, error) {
	admin, err := t.admin()
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	asked := kadm.TopicsSet{}
	asked.Add(one.Topic, one.Partition)
	found, err := admin.DescribeProducers(ctx, asked)
	states := [][]any{}
	found.EachProducer(func(one kadm.DescribedProducer) {
		states = append(states, []any{one.ProducerEpoch, one.LastSequence, one.CurrentTxnStartOffset, one.CoordinatorEpoch})
	})
	return states, err
}

func (t *transactor) describeGroup(ctx context.Context, one operation) (any, error) {
	admin, err := t.admin()
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	found, err := admin.DescribeConsumerGroups(ctx, one.Group)
	if err == nil {
		err = found[one.Group].Err
	}
	if err != nil {
		return nil, err
	}
	group := found[one.Group]
	shares := []string{}
	for _, member := range group.Members {
		shares = append(shares, fmt.Sprint(member.Assignment.Sorted(), member.TargetAssignment.Sorted(), member.MemberEpoch))
	}
	slices.Sort(shares)
	return map[string]any{"state": group.State, "assignor": group.AssignorName, "members": shares,
		"epochs": []int32{group.Epoch, group.AssignmentEpoch}}, nil
}
