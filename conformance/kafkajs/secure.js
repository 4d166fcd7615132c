// kafkajs: the tasks of conformance/secure/tasks.py. node secure.js FILE
'use strict'
const fs = require('node:fs')
const { Kafka, logLevel } = require('kafkajs')

const STEP_MS = 60000
const sleep = (ms) => new Promise((resolve) => { setTimeout(resolve, ms) })

const within = (ms, promise) => {
  let timer
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`not done after ${ms} ms`)), ms) })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

function client(task) {
  const ssl = { ca: [fs.readFileSync(task.authority, 'utf-8')] }
  if (task.keystore) {
    ssl.cert = fs.readFileSync(task.certificate, 'utf-8')
    ssl.key = fs.readFileSync(task.key, 'utf-8')
  }
  const settings = {
    clientId: 'conformance', brokers: [task.bootstrap], ssl, logLevel: logLevel.NOTHING, authenticationTimeout: 30000,
    reauthenticationThreshold: 1000, retry: { retries: 2, initialRetryTime: 200 },
  }
  if (task.mechanism === 'OAUTHBEARER') {
    settings.sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: task.token }) }
  } else if (task.mechanism) {
    settings.sasl = { mechanism: task.mechanism.toLowerCase(), username: task.username, password: task.password }
  }
  return new Kafka(settings)
}

async function using(made, work) {
  await made.connect()
  try {
    return await work(made)
  } finally {
    await within(5000, made.disconnect()).catch(() => {})
  }
}

const create = (task, topic) => using(client(task).admin(), (admin) => admin.createTopics({ topics: [{ topic, numPartitions: 2 }] }))

const produce = (task, count) => using(client(task).producer(), (producer) => producer.send({
  topic: task.topic, messages: Array.from({ length: count }, (_, n) => ({ value: `value ${n}` })),
}))

// Reads in a group until `done(values)`; the errors that end the consumer are thrown.
const consume = (task, done) => using(client(task).consumer({ groupId: task.group, sessionTimeout: 10000 }), async (consumer) => {
  const found = []
  await consumer.subscribe({ topics: [task.topic], fromBeginning: true })
  await within(STEP_MS, new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error))
    consumer.run({
      eachMessage: async ({ message }) => {
        found.push(message.value.toString())
        if (done(found)) resolve()
      },
    }).catch(reject)
  }))
  return found
})

function compare(found, count) {
  const wanted = Array.from({ length: count }, (_, n) => `value ${n}`).sort()
  if (JSON.stringify([...found].sort()) !== JSON.stringify(wanted)) {
    throw new Error(`${found.length} records came, ${count} were sent`)
  }
}

async function roundTrip(task) {
  await create(task, task.topic)
  await produce(task, task.records)
  compare(await consume(task, (found) => found.length >= task.records), task.records)
}

// The work has to fail with an error of one of these names or protocol types, or because of one.
async function expect(what, wanted, work) {
  const heard = []
  try {
    await work()
  } catch (error) {
    for (let cause = error; cause; cause = cause.cause) {
      heard.push(cause.name, cause.type)
      for (const one of cause.errors || []) heard.push(one.name, one.type)
    }
    if (heard.some((name) => wanted.includes(name))) return
    throw new Error(`${what}: ${heard.filter(Boolean).join(' < ')}: ${error.message}`)
  }
  throw new Error(`${what} was not refused`)
}

async function forbidden(task) {
  const topic = ['TOPIC_AUTHORIZATION_FAILED', 'CLUSTER_AUTHORIZATION_FAILED']
  await expect('creating a topic', topic, () => create(task, `${task.topic}-new`))
  await expect('producing', topic.slice(0, 1), () => produce(task, 1))
  await expect('joining a group', ['GROUP_AUTHORIZATION_FAILED', 'TOPIC_AUTHORIZATION_FAILED'], () => consume(task, () => true))
}

async function sessions(task) {
  await create(task, task.topic)
  const end = Date.now() + task.seconds * 1000
  let sent = 0
  let finished = false
  const reading = consume(task, (found) => finished && found.length >= sent)
  reading.catch(() => {})
  await using(client(task).producer({ retry: { retries: 0 } }), async (producer) => {
    while (Date.now() < end) {
      await producer.send({ topic: task.topic, messages: [{ value: `value ${sent}` }] })
      sent += 1
      await sleep(100)
    }
    finished = true
    await producer.send({ topic: task.topic, messages: [{ value: `value ${sent}` }] })
    sent += 1
  })
  compare(await reading, sent)
}

const actions = {
  'round trip': roundTrip,
  // It takes the broker's first answer to a bad token, which says why (RFC 7628), for success, and is disconnected then.
  refused: (task) => expect(
    'connecting',
    [task.mechanism === 'OAUTHBEARER' ? 'KafkaJSConnectionClosedError' : 'KafkaJSSASLAuthenticationError'],
    () => create(task, task.topic),
  ),
  forbidden,
  'traffic over three sessions': sessions,
}

async function main() {
  let failures = 0
  for (const task of JSON.parse(fs.readFileSync(process.argv[2], 'utf-8'))) {
    try {
      await actions[task.action](task)
      console.log(`ok ${task.name}`)
    } catch (error) {
      failures += 1
      console.log(`not ok ${task.name}: ${String(error.message).split('\n')[0]}`)
    }
  }
  process.exit(failures ? 1 : 0)
}

main()
