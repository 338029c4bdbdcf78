// Driver of franz-go's group transactions (GroupTransactSession). Argument: the broker's host:port.
// The exchange over standard input and output is that of driver.py; it can be asked for "version" and "copy".
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	client  = "github.com/twmb/franz-go"
	atOnce  = 10 // records in a transaction
	aborted = 5  // every fifth transaction is aborted
)

type request struct {
	Operation string
	Arguments struct{ Name, Group, Source, Topic, Last string }
}

func main() {
	out := json.NewEncoder(os.Stdout)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var asked request
		err := json.Unmarshal(in.Bytes(), &asked)
		var value any
		if err == nil {
			value, err = answer(os.Args[1], asked)
		}
		if err != nil {
			_ = out.Encode(map[string]any{"error": fmt.Sprintf("%T", err), "code": nil, "text": err.Error()})
		} else {
			_ = out.Encode(map[string]any{"value": value})
		}
	}
}

func answer(address string, asked request) (any, error) {
	switch asked.Operation {
	case "version":
		return version()
	case "copy":
		return copyAll(address, asked)
	}
	return nil, fmt.Errorf("no operation %s", asked.Operation)
}

func version() (string, error) {
	built, _ := debug.ReadBuildInfo()
	for _, module := range built.Deps {
		if module.Path == client {
			return module.Version, nil
		}
	}
	return "", fmt.Errorf("built without %s", client)
}

// copyAll copies records from topic to topic until the last one is committed, and returns the number of commits.
func copyAll(address string, asked request) (int, error) {
	given := asked.Arguments
	begun, committed := 0, 0
	for {
		session, err := kgo.NewGroupTransactSession(
			kgo.SeedBrokers(address),
			kgo.TransactionalID(given.Name),
			kgo.ConsumerGroup(given.Group),
			kgo.ConsumeTopics(given.Source),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()),
			kgo.RequireStableFetchOffsets(),
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
		)
		if err != nil {
			return committed, err
		}
		done, err := run(session, asked, &begun, &committed)
		session.Close()
		if done {
			return committed, nil
		}
		fmt.Fprintln(os.Stderr, "a new session, for", err)
	}
}

// run says whether the last record is committed; an error ends the session.
func run(session *kgo.GroupTransactSession, asked request, begun, committed *int) (bool, error) {
	background := context.Background()
	for {
		fetches := session.PollRecords(background, atOnce)
		for _, failed := range fetches.Errors() {
			fmt.Fprintln(os.Stderr, "fetch:", failed.Err)
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return false, err
		}
		*begun++
		commit, atEnd := *begun%aborted != 0, false
		first := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			value := string(record.Value)
			atEnd = atEnd || value == asked.Arguments.Last
			if !commit {
				value = "aborted " + value
			}
			copied := &kgo.Record{Topic: asked.Arguments.Topic, Partition: 0, Value: []byte(value)}
			session.Produce(background, copied, first.Promise())
		})
		ended, err := session.End(background, kgo.TransactionEndTry(first.Err() == nil && commit))
		if err != nil {
			return false, err
		}
		if ended {
			*committed++
		}
		if ended && atEnd {
			return true, nil
		}
	}
}
