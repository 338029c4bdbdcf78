// Has Testcontainers' module for Kafka start an image, and kafkajs use it. Arguments: the node_modules folder, the image, and
// kraft or zookeeper.

const path = require('node:path')
const [modules, image, mode] = process.argv.slice(2)
const load = name => require(path.join(modules, name))
const { KafkaContainer } = load('@testcontainers/kafka')
const { Kafka, logLevel } = load('kafkajs')

async function main () {
  const asked = new KafkaContainer(image)
  const container = await (mode === 'kraft' ? asked.withKraft() : asked).start()
  try {
    const kafka = new Kafka({ brokers: [`${container.getHost()}:${container.getMappedPort(9093)}`], logLevel: logLevel.ERROR })
    const producer = kafka.producer()
    await producer.connect()
    const [sent] = await producer.send({ topic: 'orders', messages: [{ value: 'a book' }] })
    console.log(sent.baseOffset)
    const consumer = kafka.consumer({ groupId: 'g' })
    await consumer.connect()
    await consumer.subscribe({ topic: 'orders', fromBeginning: true })
    console.log(await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error('no record in 30 s')), 30000).unref()
      consumer.run({ eachMessage: async ({ message }) => resolve(message.value.toString()) }).catch(reject)
    }))
    await consumer.disconnect()
    await producer.disconnect()
  } finally {
    await container.stop()
  }
}

main().catch(error => { console.error(error); process.exitCode = 1 })
