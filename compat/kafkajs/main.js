// What a Node.js program does with kafkajs: creates a topic, writes to it in transactions of which
// every other one is aborted, and reads what is committed in a group. Arguments: address, topic,
// transactions. Prints "read VALUE" for each record, then "committed OFFSET" for the only partition.
import { Kafka, logLevel } from "kafkajs";

const RECORDS_EACH = 10;
const [address, topic, transactions] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [address], logLevel: logLevel.ERROR });
const admin = kafka.admin();

async function write(count) {
  const producer = kafka.producer({ transactionalId: topic, maxInFlightRequests: 1, idempotent: true });
  await producer.connect();
  for (let number = 0; number < count; number++) {
    const transaction = await producer.transaction();
    const messages = [];
    for (let record = 0; record < RECORDS_EACH; record++) messages.push({ value: `${number}-${record}` });
    await transaction.send({ topic, messages });
    await (number % 2 === 0 ? transaction.commit() : transaction.abort());
  }
  await producer.disconnect();
}

async function read(count) {
  const consumer = kafka.consumer({ groupId: topic });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((done, failed) => {
    let found = 0;
    consumer.on(consumer.events.CRASH, ({ payload }) => failed(payload.error));
    consumer
      .run({
        eachMessage: async ({ message }) => {
          console.log("read", message.value.toString());
          if (++found === count) done();
        },
      })
      .catch(failed);
  });
  await consumer.disconnect(); // commits how far it has read
}

await admin.connect();
await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] });
await write(Number(transactions));
await read(Math.ceil(Number(transactions) / 2) * RECORDS_EACH);
const [{ partitions }] = await admin.fetchOffsets({ groupId: topic, topics: [topic] });
console.log("committed", partitions[0].offset);
await admin.disconnect();
