// Driver of franz-go: its group transactions (GroupTransactSession), and what secured.go and groups.go have. Argument:
// the broker's host:port. The exchange over standard input and output is that of driver.py.
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

type arguments struct{ Name, Group, Source, Topic, Last string }

type request struct {
	Operation string
	Arguments json.RawMessage
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
			_ = out.Encode(map[string]any{"error": fmt.Sprintf("%T", err), "code": codeOf(err), "text": err.Error()})
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
		var given arguments
		if err := json.Unmarshal(asked.Arguments, &given); err != nil {
			return nil, err
		}
		return copyAll(address, given)
	case "join", "poll", "assignment", "commit", "leave":
		return grouped(address, asked.Operation, asked.Arguments)
	case "topics", "produce", "bounds", "read":
		return secured(address, asked.Operation, asked.Arguments)
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
func copyAll(address string, given arguments) (int, error) {
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
		done, err := run(session, given, &begun, &committed)
		session.Close()
		if done {
			return committed, nil
		}
		fmt.Fprintln(os.Stderr, "a new session, for", err)
	}
}

// run says whether the last record is committed; an error ends the session.
func run(session *kgo.GroupTransactSession, given arguments, begun, committed *int) (bool, error) {
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
			atEnd = atEnd || value == given.Last
			if !commit {
				value = "aborted " + value
			}
			copied := &kgo.Record{Topic: given.Topic, Partition: 0, Value: []byte(value)}
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
