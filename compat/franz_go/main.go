// What a Go program does with franz-go: creates a topic, writes to it in transactions of which every
// other one is aborted, and reads what is committed in a group. Arguments: address, topic, transactions.
// Prints "read VALUE" for each record, then "committed OFFSET" for the only partition.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const recordsEach = 10

func main() {
	address, topic := os.Args[1], os.Args[2]
	transactions, err := strconv.Atoi(os.Args[3])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	write(ctx, address, topic, transactions)
	read(ctx, address, topic, (transactions+1)/2*recordsEach)
}

func write(ctx context.Context, address, topic string, transactions int) {
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	check(err)
	defer client.Close()
	created, err := kadm.NewClient(client).CreateTopic(ctx, 1, 1, nil, topic)
	check(err)
	check(created.Err)
	for number := 0; number < transactions; number++ {
		check(client.BeginTransaction())
		for record := 0; record < recordsEach; record++ {
			client.Produce(ctx, kgo.StringRecord(fmt.Sprintf("%d-%d", number, record)), nil)
		}
		check(client.Flush(ctx))
		check(client.EndTransaction(ctx, number%2 == 0))
	}
}

func read(ctx context.Context, address, topic string, count int) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(address),
		kgo.ConsumerGroup(topic),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
	)
	check(err)
	defer client.Close()
	for found := 0; found < count; {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Println("read", string(record.Value))
			found++
		})
	}
	check(client.CommitUncommittedOffsets(ctx))
	offsets, err := kadm.NewClient(client).FetchOffsets(ctx, topic)
	check(err)
	offset, _ := offsets.Lookup(topic, 0)
	fmt.Println("committed", offset.At)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
