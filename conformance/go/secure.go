// franz-go over secured listeners: the tasks of conformance/secure/tasks.py.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/kerberos"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type task struct {
	Name, Action, Bootstrap, Protocol, Authority, Topic, Group string
	Mechanism, Username, Password, Token                       string
	Principal, Keytab, Service, Certificate, Key               string
	TokenAuth                                                  bool `json:"token_auth"`
	Records, Seconds                                           int
}

// secured runs the tasks of a file.
func secured(path string) {
	text, err := os.ReadFile(path)
	var tasks []task
	if err == nil {
		err = json.Unmarshal(text, &tasks)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	actions := map[string]func(context.Context, task) error{
		"round trip": roundTrip, "refused": refused, "forbidden": forbidden, "traffic over three sessions": sessions,
	}
	for _, one := range tasks {
		check(one.Name, 90, func(ctx context.Context) error { return actions[one.Action](ctx, one) })
	}
	if failures > 0 {
		os.Exit(1)
	}
}

func options(one task, more ...kgo.Opt) ([]kgo.Opt, error) {
	authority, err := os.ReadFile(one.Authority)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	encryption := &tls.Config{RootCAs: pool}
	if one.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(one.Certificate, one.Key)
		if err != nil {
			return nil, err
		}
		encryption.Certificates = []tls.Certificate{pair}
	}
	found := append([]kgo.Opt{kgo.SeedBrokers(one.Bootstrap), kgo.DialTLSConfig(encryption)}, more...)
	switch one.Mechanism {
	case "PLAIN":
		found = append(found, kgo.SASL(plain.Auth{User: one.Username, Pass: one.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		auth := scram.Auth{User: one.Username, Pass: one.Password, IsToken: one.TokenAuth}
		found = append(found, kgo.SASL(auth.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		auth := scram.Auth{User: one.Username, Pass: one.Password, IsToken: one.TokenAuth}
		found = append(found, kgo.SASL(auth.AsSha512Mechanism()))
	case "OAUTHBEARER":
		found = append(found, kgo.SASL(oauth.Auth{Token: one.Token}.AsMechanism()))
	case "GSSAPI":
		settings, err := config.Load(os.Getenv("KRB5_CONFIG"))
		if err != nil {
			return nil, err
		}
		keys, err := keytab.Load(one.Keytab)
		if err != nil {
			return nil, err
		}
		user, realm, _ := strings.Cut(one.Principal, "@")
		auth := kerberos.Auth{
			Client: client.NewWithKeytab(user, realm, keys, settings, client.DisablePAFXFAST(true)), Service: one.Service,
		}
		found = append(found, kgo.SASL(auth.AsMechanism()))
	}
	return found, nil
}

func connected(one task, more ...kgo.Opt) (*kgo.Client, error) {
	found, err := options(one, more...)
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(found...)
}

func createTopic(ctx context.Context, one task, topic string) error {
	made, err := connected(one)
	if err != nil {
		return err
	}
	defer made.Close()
	_, err = kadm.NewClient(made).CreateTopic(ctx, 2, 1, nil, topic)
	return err
}

func produceRecords(ctx context.Context, one task, count int) error {
	made, err := connected(one)
	if err != nil {
		return err
	}
	defer made.Close()
	var out []*kgo.Record
	for n := range count {
		out = append(out, &kgo.Record{Topic: one.Topic, Value: fmt.Appendf(nil, "value %d", n)})
	}
	return made.ProduceSync(ctx, out...).FirstErr()
}

func consumeGroup(ctx context.Context, one task, count int) ([]string, error) {
	made, err := connected(one, kgo.ConsumerGroup(one.Group), kgo.ConsumeTopics(one.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer made.Close()
	var found []string
	for len(found) < count {
		fetches := made.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) { found = append(found, string(record.Value)) })
	}
	return found, made.CommitUncommittedOffsets(ctx)
}

func compareValues(found []string, count int) error {
	var wanted []string
	for n := range count {
		wanted = append(wanted, fmt.Sprintf("value %d", n))
	}
	slices.Sort(wanted)
	slices.Sort(found)
	if !slices.Equal(found, wanted) {
		return fmt.Errorf("%d records came, %d were sent", len(found), count)
	}
	return nil
}

func roundTrip(ctx context.Context, one task) error {
	if err := createTopic(ctx, one, one.Topic); err != nil {
		return err
	}
	if err := produceRecords(ctx, one, one.Records); err != nil {
		return err
	}
	found, err := consumeGroup(ctx, one, one.Records)
	if err != nil {
		return err
	}
	return compareValues(found, one.Records)
}

// expected turns an error of one of these kinds into none.
func expected(what string, err error, wanted ...error) error {
	for _, one := range wanted {
		if errors.Is(err, one) {
			return nil
		}
	}
	if err == nil {
		return fmt.Errorf("%s was not refused", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func refused(ctx context.Context, one task) error {
	made, err := connected(one)
	if err != nil {
		return err
	}
	defer made.Close()
	err = made.Ping(ctx)
	// The broker's first answer to a bad token says why (RFC 7628); the client takes it for the end.
	if one.Mechanism == "OAUTHBEARER" && err != nil && strings.Contains(err.Error(), "unexpected data in oauth response") {
		return nil
	}
	return expected("connecting", err, kerr.SaslAuthenticationFailed)
}

func forbidden(ctx context.Context, one task) error {
	err := createTopic(ctx, one, one.Topic+"-new")
	if err := expected("creating a topic", err, kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed); err != nil {
		return err
	}
	err = produceRecords(ctx, one, 1)
	if err := expected("producing", err, kerr.TopicAuthorizationFailed); err != nil {
		return err
	}
	_, err = consumeGroup(ctx, one, 1)
	return expected("joining a group", err, kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed)
}

func sessions(ctx context.Context, one task) error {
	if err := createTopic(ctx, one, one.Topic); err != nil {
		return err
	}
	producer, err := connected(one, kgo.DisableIdempotentWrite(), kgo.RecordRetries(0))
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := connected(one, kgo.ConsumerGroup(one.Group), kgo.ConsumeTopics(one.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer consumer.Close()
	var found []string
	sent := 0
	end := time.Now().Add(time.Duration(one.Seconds) * time.Second)
	for time.Now().Before(end) || len(found) < sent {
		if time.Now().Before(end) {
			record := &kgo.Record{Topic: one.Topic, Value: fmt.Appendf(nil, "value %d", sent)}
			if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
				return err
			}
			sent++
		}
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		fetches := consumer.PollFetches(short)
		cancel()
		if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fetches.EachRecord(func(record *kgo.Record) { found = append(found, string(record.Value)) })
	}
	return compareValues(found, sent)
}
