// Has Testcontainers' module for Kafka start an image, and franz-go use it. Arguments: the image; the cluster's id, if any.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/kafka"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	var options []testcontainers.ContainerCustomizer
	if len(os.Args) > 2 {
		options = append(options, kafka.WithClusterID(os.Args[2]))
	}
	container, err := kafka.Run(ctx, os.Args[1], options...)
	defer func() { _ = testcontainers.TerminateContainer(container) }()
	if err != nil {
		log.Panic(err)
	}
	brokers, err := container.Brokers(ctx)
	if err != nil {
		log.Panic(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("g"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.AllowAutoTopicCreation())
	if err != nil {
		log.Panic(err)
	}
	defer client.Close()
	sent, err := client.ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: []byte("a book")}).First()
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(sent.Offset)
	for _, record := range client.PollFetches(ctx).Records() {
		fmt.Println(string(record.Value))
	}
}
