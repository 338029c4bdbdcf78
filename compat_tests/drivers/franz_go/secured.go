// What the matrix of security asks of franz-go: topics, produce, bounds, read. What it is told of security is in the
// environment, as JSON: mechanism, user, password, bearer (a token), ca, own (PEM files).
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type security struct{ Mechanism, User, Password, Bearer, CA, Own string }

type place struct {
	Topic     string
	Partition int32
	Offset    int64
	Count     int
	WaitMS    int `json:"wait_ms"`
	Records   []struct{ Value string }
}

func connect(address string, more ...kgo.Opt) (*kgo.Client, error) {
	var given security
	if text := os.Getenv("CLIENT_SETTINGS"); text != "" {
		if err := json.Unmarshal([]byte(text), &given); err != nil {
			return nil, err
		}
	}
	options := append([]kgo.Opt{
		kgo.SeedBrokers(address),
		kgo.RecordDeliveryTimeout(5 * time.Second),
		kgo.RetryTimeout(5 * time.Second),
		kgo.DisableIdempotentWrite(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}, more...)
	if given.CA != "" {
		config, err := trust(given)
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if mechanism := login(given); mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	return kgo.NewClient(options...)
}

func trust(given security) (*tls.Config, error) {
	authority, err := os.ReadFile(given.CA)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authority)
	if given.Own != "" {
		own, err := tls.LoadX509KeyPair(given.Own, given.Own)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

func login(given security) sasl.Mechanism {
	switch given.Mechanism {
	case "PLAIN":
		return plain.Auth{User: given.User, Pass: given.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: given.User, Pass: given.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: given.User, Pass: given.Password}.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: given.Bearer}.AsMechanism()
	}
	return nil
}

func secured(address, operation string, arguments json.RawMessage) (any, error) {
	var asked place
	if err := json.Unmarshal(arguments, &asked); err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var more []kgo.Opt
	if operation == "read" {
		at := map[string]map[int32]kgo.Offset{asked.Topic: {asked.Partition: kgo.NewOffset().At(asked.Offset)}}
		more = append(more, kgo.ConsumePartitions(at))
	}
	client, err := connect(address, more...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	switch operation {
	case "produce":
		return produce(limit, client, asked)
	case "topics":
		return topics(limit, client)
	case "bounds":
		return bounds(limit, client, asked)
	}
	return read(limit, client, asked)
}

func produce(limit context.Context, client *kgo.Client, asked place) (any, error) {
	places := [][]int64{}
	for _, each := range asked.Records {
		record := &kgo.Record{Topic: asked.Topic, Partition: asked.Partition, Value: []byte(each.Value)}
		done, err := client.ProduceSync(limit, record).First()
		if err != nil {
			return nil, err
		}
		places = append(places, []int64{int64(done.Partition), done.Offset})
	}
	return places, nil
}

func topics(limit context.Context, client *kgo.Client) (any, error) {
	answer, err := kmsg.NewPtrMetadataRequest().RequestWith(limit, client)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, each := range answer.Topics {
		names = append(names, *each.Topic)
	}
	return names, nil
}

func bounds(limit context.Context, client *kgo.Client, asked place) (any, error) {
	found := []int64{}
	for _, timestamp := range []int64{-2, -1} {
		request := kmsg.NewPtrListOffsetsRequest()
		request.ReplicaID = -1
		topic, partition := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
		topic.Topic, partition.Partition, partition.Timestamp = asked.Topic, asked.Partition, timestamp
		topic.Partitions = append(topic.Partitions, partition)
		request.Topics = append(request.Topics, topic)
		answer, err := request.RequestWith(limit, client)
		if err != nil {
			return nil, err
		}
		told := answer.Topics[0].Partitions[0]
		if err := kerr.ErrorForCode(told.ErrorCode); err != nil {
			return nil, err
		}
		found = append(found, told.Offset)
	}
	return found, nil
}

func read(limit context.Context, client *kgo.Client, asked place) (any, error) {
	records := []map[string]any{}
	for len(records) < asked.Count {
		fetches := client.PollFetches(limit)
		for _, failed := range fetches.Errors() {
			return nil, failed.Err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			records = append(records, map[string]any{
				"partition": record.Partition, "offset": record.Offset, "value": string(record.Value),
			})
		})
	}
	return records[:asked.Count], nil
}

// codeOf is Kafka's, of an error that a broker answered.
func codeOf(err error) any {
	var told *kerr.Error
	if errors.As(err, &told) {
		return told.Code
	}
	return nil
}
