package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// lags prints the total lag of each group as kadm computes it, as JSON.
func lags(address string, groups []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	found, err := kadm.NewClient(client).Lag(ctx, groups...)
	if err != nil {
		return err
	}
	totals := map[string]int64{}
	for _, group := range found.Sorted() {
		if err := group.Error(); err != nil {
			if errors.Is(err, kerr.GroupIDNotFound) {
				continue // kadm describes classic groups only
			}
			return fmt.Errorf("%s: %w", group.Group, err)
		}
		totals[group.Group] = group.Lag.Total()
	}
	return json.NewEncoder(os.Stdout).Encode(totals)
}

// push produces a record every 50 ms for some seconds, while the client pushes its metrics.
func push(address, topic, name string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ClientID(name))
	if err != nil {
		return err
	}
	defer client.Close()
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr()
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// metrics runs `--lags ADDRESS GROUP...` or `--push ADDRESS TOPIC CLIENT`.
func metrics(arguments []string) {
	err := fmt.Errorf("arguments: %v", arguments)
	if arguments[0] == "--lags" && len(arguments) > 2 {
		err = lags(arguments[1], arguments[2:])
	} else if arguments[0] == "--push" && len(arguments) == 4 {
		err = push(arguments[1], arguments[2], arguments[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
