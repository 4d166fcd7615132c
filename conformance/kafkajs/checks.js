// kafkajs against a broker: node checks.js HOST:PORT. Prints `ok NAME` and `not ok NAME: REASON` lines.
'use strict'
const assert = require('node:assert')
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')

const broker = process.argv[2]
const suffix = Date.now().toString(36)
const topic = `kafkajs-${suffix}`
const kafka = new Kafka({
  clientId: 'conformance', brokers: [broker], logLevel: logLevel.NOTHING, retry: { retries: 2, initialRetryTime: 100 },
})
let failures = 0

const within = (seconds, promise) => {
  let timer
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`not done after ${seconds} s`)), seconds * 1000) })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

async function check(name, work, seconds = 20) {
  try {
    await within(seconds, work())
    console.log(`ok ${name}`)
  } catch (error) {
    failures += 1
    console.log(`not ok ${name}: ${String(error.message).split('\n')[0]}`)
  }
}

async function consumeByGroup(count) {
  const consumer = kafka.consumer({ groupId: `group-${suffix}-${count}`, sessionTimeout: 10000 })
  const found = []
  try {
    await consumer.connect()
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error))
      consumer.run({
        eachMessage: async ({ message }) => {
          found.push(message)
          if (found.length === count) resolve()
        },
      }).catch(reject)
    })
  } finally {
    await within(5, consumer.disconnect()).catch(() => {})
  }
  return found
}

async function main() {
  const admin = kafka.admin()
  const producer = kafka.producer()
  await check('admin connects', () => admin.connect())
  await check('create a topic', async () => {
    assert.strictEqual(await admin.createTopics({ topics: [{ topic, numPartitions: 3 }], waitForLeaders: true }), true)
    assert.strictEqual(await admin.createTopics({ topics: [{ topic }] }), false)
  })
  await check('list and describe topics', async () => {
    assert((await admin.listTopics()).includes(topic))
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
    assert.strictEqual(topics[0].partitions.length, 3)
  })
  await check('producer connects', () => producer.connect())
  const messages = Array.from({ length: 100 }, (_, n) => ({
    key: `k${n % 7}`, value: `value ${n}`, headers: { trace: `t${n}` }, timestamp: String(1700000000000 + n), partition: 0,
  }))
  await check('produce with keys, headers and time stamps', async () => {
    const [metadata] = await producer.send({ topic, messages })
    assert.strictEqual(metadata.baseOffset, '0')
    assert.strictEqual(metadata.errorCode, 0)
  })
  await check('produce gzip', async () => {
    const [metadata] = await producer.send({ topic, compression: CompressionTypes.GZIP, messages })
    assert.strictEqual(metadata.baseOffset, '100')
  })
  for (const acks of [0, 1, -1]) {
    await check(`produce with acks ${acks}`, () => producer.send({ topic, acks, messages: [{ value: 'x', partition: 1 }] }))
  }
  await check('idempotent producer', async () => {
    const once = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
    await once.connect()
    await once.send({ topic, messages: [{ value: 'once', partition: 2 }] })
    await once.disconnect()
  })
  await check('topic offsets', async () => {
    const offsets = await admin.fetchTopicOffsets(topic)
    const first = offsets.find(({ partition }) => partition === 0)
    assert.deepStrictEqual([first.low, first.high], ['0', '200'])
  })
  await check('topic offsets by time stamp', async () => {
    const offsets = await admin.fetchTopicOffsetsByTimestamp(topic, 1700000000050)
    assert.strictEqual(offsets.find(({ partition }) => partition === 0).offset, '50')
  })
  await check('describe and alter configs', async () => {
    await admin.alterConfigs({
      validateOnly: false,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries: [{ name: 'retention.ms', value: '7200000' }] }],
    })
    const { resources } = await admin.describeConfigs({
      includeSynonyms: false, resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }],
    })
    const entry = resources[0].configEntries.find(({ configName }) => configName === 'retention.ms')
    assert.strictEqual(entry.configValue, '7200000')
  })
  await check('create partitions', () => admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] }))
  await check('delete records', async () => {
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '10' }] })
    const first = (await admin.fetchTopicOffsets(topic)).find(({ partition }) => partition === 0)
    assert.strictEqual(first.low, '10')
  })
  await check('describe the cluster', async () => {
    const { brokers, clusterId } = await admin.describeCluster()
    assert.strictEqual(brokers.length, 1)
    assert(clusterId)
  })
  await check('consume as a group', async () => {
    const found = (await consumeByGroup(190)).filter(({ headers }) => headers && headers.trace)
    assert.strictEqual(found[0].offset, '10')
    assert.strictEqual(found[0].headers.trace.toString(), 't10')
  })
  await check('list groups', async () => assert((await admin.listGroups()).groups.length > 0))
  await check('delete a topic', async () => {
    await admin.deleteTopics({ topics: [topic] })
    assert(!(await admin.listTopics()).includes(topic))
  })
  await within(5, Promise.all([producer.disconnect(), admin.disconnect()])).catch(() => {})
  process.exit(failures ? 1 : 0)
}

main()
