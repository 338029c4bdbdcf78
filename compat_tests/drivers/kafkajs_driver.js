// Driver of kafkajs. Arguments: the node_modules folder with kafkajs and the codecs, the broker's host:port.
// The exchange over standard input and output is that of driver.py. kafkajs pushes records; what came waits for a poll.

const fs = require('node:fs')
const path = require('node:path')
const readline = require('node:readline')

const [modules, address] = process.argv.slice(2)
const load = name => require(path.join(modules, name))
const kafkajs = load('kafkajs')
const { Kafka, CompressionTypes, CompressionCodecs, PartitionAssigners, ConfigResourceTypes, logLevel } = kafkajs

const security = JSON.parse(process.env.CLIENT_SETTINGS || '{}')
if (security.ssl) security.ssl.ca = [fs.readFileSync(security.ssl.ca)]
if (security.bearer) {
  const value = security.bearer
  security.sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value }) }
  delete security.bearer
}
const kafka = new Kafka({ brokers: [address], ...security, logLevel: logLevel.ERROR, logCreator: () => e => console.error(JSON.stringify(e)) })
const admin = kafka.admin()
const producers = new Map()
const members = new Map()
let readers = 0

// kafkajs has gzip only; it takes other codecs from packages
CompressionCodecs[CompressionTypes.Snappy] = load('kafkajs-snappy')
const lz4 = load('lz4-napi')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: encoder => lz4.compressFrame(encoder.buffer),
  decompress: buffer => lz4.decompressFrame(buffer),
})
const zstd = load('@bokuweb/zstd-wasm')
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async buffer => Buffer.from(zstd.decompress(buffer)),
})
const CODECS = { none: 0, gzip: 1, snappy: 2, lz4: 3, zstd: 4 }

const data = text => (text === null || text === undefined ? null : Buffer.from(text, 'latin1'))
const text = data => (data === null || data === undefined ? null : data.toString('latin1'))
const until = async (holds, waitMs) => {
  const deadline = Date.now() + waitMs
  while (!holds() && Date.now() < deadline) await new Promise(resolve => setTimeout(resolve, 10))
}

function shown (partition, message) {
  const headers = []
  for (const [name, value] of Object.entries(message.headers || {}))
    for (const one of Array.isArray(value) ? value : [value]) headers.push([name, text(one)])
  const { key, value } = message
  const [offset, timestamp] = [Number(message.offset), Number(message.timestamp)]
  return { partition, offset, timestamp, key: text(key), value: text(value), headers }
}

async function producer (idempotent) {
  if (!producers.has(idempotent)) {
    const made = kafka.producer({ idempotent, maxInFlightRequests: 1, retry: { retries: 5 } })
    await made.connect()
    producers.set(idempotent, made)
  }
  return producers.get(idempotent)
}

async function consume (group, topics, settings, heading) {
  const consumer = kafka.consumer({ groupId: group, heartbeatInterval: 300, maxWaitTimeInMs: 200, ...settings })
  const state = { consumer, records: [], assignment: [] }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => { state.assignment = payload.memberAssignment })
  await consumer.connect()
  await consumer.subscribe({ topics, fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ topic, partition, message }) => {
      state.records.push({ topic, next: (BigInt(message.offset) + 1n).toString(), ...shown(partition, message) })
    },
  })
  return state
}

function take (state, count) {
  const taken = state.records.splice(0, count || state.records.length)
  for (const record of taken) state.done = { ...state.done, [`${record.topic} ${record.partition}`]: record.next }
  return taken.map(({ topic, next, ...record }) => record)
}

async function configs (type, name) {
  const described = await admin.describeConfigs({ includeSynonyms: false, resources: [{ type, name }] })
  return Object.fromEntries(described.resources[0].configEntries.map(entry => [entry.configName, entry.configValue]))
}

// An admin that has looked for the leaders of a topic asks for that topic ever after, and fails once it is deleted, as it
// is after each test: whoever looks has an admin of its own.
async function aside (look) {
  const one = kafka.admin()
  await one.connect()
  try {
    return await look(one)
  } finally {
    await one.disconnect()
  }
}

const operations = {
  version: () => require(path.join(modules, 'kafkajs/package.json')).version,

  brokers: async () => (await admin.describeCluster()).brokers.map(broker => [broker.nodeId, broker.host, broker.port]),
  create_topic: async ({ topic, partitions, configs }) => {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    await admin.createTopics({ topics: [{ topic, numPartitions: partitions, replicationFactor: 1, configEntries }], waitForLeaders: true })
      .then(created => { if (!created) throw Object.assign(new Error('there already'), { code: 36 }) }) // kafkajs says it so
  },
  topics: () => admin.listTopics(),
  partitions: async ({ topic }) =>
    (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.map(partition => partition.partitionId),
  add_partitions: async ({ topic, total }) => { await admin.createPartitions({ topicPartitions: [{ topic, count: total }] }) },
  delete_topic: async ({ topic }) => { await admin.deleteTopics({ topics: [topic] }) },

  produce: async ({ topic, records, acks, codec, idempotent }) => {
    const messages = records.map(record => ({
      value: data(record.value),
      key: data(record.key),
      partition: record.partition,
      timestamp: record.timestamp === undefined ? undefined : String(record.timestamp),
      headers: (record.headers || []).reduce((all, [name, value]) => ({ ...all, [name]: [...(all[name] || []), data(value)] }), {}),
    }))
    const sent = await (await producer(idempotent)).send({ topic, acks, compression: CODECS[codec], messages })
    const places = []  // kafkajs tells the base offset of each partition
    for (const { partition, baseOffset } of sent || [])
      for (const [at] of records.filter(record => record.partition === partition).entries())
        places.push([partition, Number(baseOffset) + at])
    return places
  },
  read: async ({ topic, partition, offset, count, wait_ms: waitMs }) => {
    const state = await consume(`reader-${process.pid}-${++readers}`, [topic], {})
    try {
      state.consumer.seek({ topic, partition, offset: String(offset) })
      const wanted = () => state.records.filter(record => record.partition === partition && record.offset >= offset)
      await until(() => wanted().length >= count, waitMs)
      return wanted().slice(0, count)
    } finally {
      await state.consumer.disconnect()
    }
  },
  transact: async ({ producer: key, name, topic, values, group, source, offset, commit, outcome }) => {
    if (!producers.has(key)) {
      const made = kafka.producer({ transactionalId: name, idempotent: true, maxInFlightRequests: 1, retry: { retries: 5 } })
      await made.connect()
      producers.set(key, made)
    }
    const transaction = await producers.get(key).transaction()
    await transaction.send({ topic, messages: values.map(value => ({ value: data(value), partition: 0 })) })
    const topics = [{ topic: source, partitions: [{ partition: 0, offset: String(offset) }] }]
    await transaction.sendOffsets({ consumerGroupId: group, topics })
    if (outcome) await (commit ? transaction.commit() : transaction.abort())
  },
  read_committed: async ({ topic, count, wait_ms: waitMs }) => // kafkajs reads so unless told otherwise
    (await operations.read({ topic, partition: 0, offset: 0, count, wait_ms: waitMs })).map(record => record.value),
  bounds: async ({ topic, partition }) => {
    const found = (await aside(one => one.fetchTopicOffsets(topic))).find(one => one.partition === partition)
    return [Number(found.low), Number(found.high)]
  },
  offset_at: async ({ topic, partition, timestamp }) => {
    const looked = await aside(one => one.fetchTopicOffsetsByTimestamp(topic, timestamp))
    const found = looked.find(one => one.partition === partition)
    return Number(found.offset)
  },
  delete_records: async ({ topic, partition, before }) => {
    await aside(async one => {
      await one.fetchTopicOffsets(topic) // the next call does not look for the leaders itself
      await one.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] })
    })
    return before
  },

  join: async ({ member, group, topics }) => {
    members.set(member, await consume(group, topics, { partitionAssigners: [PartitionAssigners.roundRobin] }))
  },
  poll: async ({ member, count, wait_ms: waitMs }) => {
    const state = members.get(member)
    await until(() => count && state.records.length >= count, waitMs)
    return take(state, count)
  },
  assignment: ({ member }) =>
    Object.entries(members.get(member).assignment).flatMap(([topic, partitions]) => partitions.map(one => [topic, one])),
  commit: async ({ member }) => {
    const { consumer, done } = members.get(member)
    await consumer.commitOffsets(Object.entries(done).map(([place, offset]) => {
      const [topic, partition] = place.split(' ')
      return { topic, partition: Number(partition), offset }
    }))
  },
  leave: async ({ member }) => {
    await members.get(member).consumer.disconnect()
    members.delete(member)
  },
  committed: async ({ group, topic, partition }) => {
    const [{ partitions: found }] = await aside(one => one.fetchOffsets({ groupId: group, topics: [topic] }))
    const offset = Number(found.find(one => one.partition === partition).offset)
    return offset < 0 ? null : offset
  },
  groups: async () => (await admin.listGroups()).groups.map(group => group.groupId),
  group: async ({ group }) => {
    const described = (await admin.describeGroups([group])).groups[0]
    return { state: described.state, members: described.members.length }
  },
  delete_group: async ({ group }) => { await admin.deleteGroups([group]) },

  topic_configs: ({ topic }) => configs(ConfigResourceTypes.TOPIC, topic),
  broker_configs: ({ broker }) => configs(ConfigResourceTypes.BROKER, String(broker)),
  set_topic_config: async ({ topic, name, value }) => {
    const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries: [{ name, value }] }]
    await admin.alterConfigs({ validateOnly: false, resources })
  },
}

function codeOf (error) {
  const inner = error.errors || error.groups || error.partitions || error.cause || []
  if (typeof error.code === 'number') return error.code
  for (const one of Array.isArray(inner) ? inner : [inner]) {
    const code = codeOf(one.error || one)
    if (code !== null) return code
    if (typeof one.errorCode === 'number') return one.errorCode
  }
  return null
}

async function answer ({ operation, arguments: given }) {
  try {
    const value = await operations[operation](given)
    return { value: value === undefined ? null : value }
  } catch (error) {
    return { error: error.name, code: codeOf(error), text: String(error.message) }
  }
}

async function main () {
  await zstd.init()
  await admin.connect().catch(error => console.error(error)) // who is not let in is told again when it asks
  for await (const line of readline.createInterface({ input: process.stdin }))
    process.stdout.write(JSON.stringify(await answer(JSON.parse(line))) + '\n')
  process.exit(0)
}

main()
