// Members of groups, by their names: join, poll, assignment, commit, leave. The strategy "consumer" is that of a group
// whose coordinator assigns (KIP-848).
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type membership struct {
	Member   string
	Group    string
	Topics   []string
	Strategy string
	Instance string
	Count    int
	WaitMS   int `json:"wait_ms"`
}

type member struct {
	client *kgo.Client
	lock   sync.Mutex
	owned  map[string]map[int32]bool
}

var members = map[string]*member{}

func grouped(address, operation string, arguments json.RawMessage) (any, error) {
	var asked membership
	if err := json.Unmarshal(arguments, &asked); err != nil {
		return nil, err
	}
	if operation == "join" {
		return nil, join(address, asked)
	}
	own, known := members[asked.Member]
	if !known {
		return nil, fmt.Errorf("no member %s", asked.Member)
	}
	switch operation {
	case "poll":
		return own.poll(asked)
	case "assignment":
		return own.assignment(), nil
	case "commit":
		limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return nil, own.client.CommitUncommittedOffsets(limit)
	}
	delete(members, asked.Member)
	own.client.Close()
	return nil, nil
}

func join(address string, asked membership) error {
	own := &member{owned: map[string]map[int32]bool{}}
	options := []kgo.Opt{
		kgo.ConsumerGroup(asked.Group),
		kgo.ConsumeTopics(asked.Topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(own.change(true)),
		kgo.OnPartitionsRevoked(own.change(false)),
		kgo.OnPartitionsLost(own.change(false)),
	}
	switch asked.Strategy {
	case "consumer":
		options = append(options, kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer())
	case "range":
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	default:
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	}
	if asked.Instance != "" {
		options = append(options, kgo.InstanceID(asked.Instance))
	}
	client, err := connect(address, options...)
	if err != nil {
		return err
	}
	own.client = client
	members[asked.Member] = own
	return nil
}

func (own *member) change(has bool) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, places map[string][]int32) {
		own.lock.Lock()
		defer own.lock.Unlock()
		for topic, partitions := range places {
			if own.owned[topic] == nil {
				own.owned[topic] = map[int32]bool{}
			}
			for _, partition := range partitions {
				own.owned[topic][partition] = has
			}
		}
	}
}

func (own *member) assignment() [][]any {
	own.lock.Lock()
	defer own.lock.Unlock()
	found := [][]any{}
	for topic, partitions := range own.owned {
		for partition, has := range partitions {
			if has {
				found = append(found, []any{topic, partition})
			}
		}
	}
	return found
}

func (own *member) poll(asked membership) (any, error) {
	limit, cancel := context.WithTimeout(context.Background(), time.Duration(asked.WaitMS)*time.Millisecond)
	defer cancel()
	found := []map[string]any{}
	for limit.Err() == nil && (asked.Count == 0 || len(found) < asked.Count) {
		own.client.PollFetches(limit).EachRecord(func(record *kgo.Record) {
			found = append(found, map[string]any{
				"partition": record.Partition, "offset": record.Offset, "value": string(record.Value),
			})
		})
	}
	return found, nil
}
