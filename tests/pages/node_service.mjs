// Another service on the same table, in another language: FaceTheory's document and nothing else.
// node node_service.mjs SDK ENDPOINT TABLE COMMAND PK [ARGUMENTS]

import { createRequire } from 'node:module'

const [sdk, endpoint, table, command, pk, ...rest] = process.argv.slice(2)
const {
  DynamoDBClient, GetItemCommand, PutItemCommand, UpdateItemCommand, TransactWriteItemsCommand
} = createRequire(sdk + '/')('@aws-sdk/client-dynamodb')

const client = new DynamoDBClient({
  endpoint, region: 'eu-west-1', credentials: { accessKeyId: 'local', secretAccessKey: 'local' }
})
const key = sk => ({ pk: { S: pk }, sk: { S: sk } })
const number = value => ({ N: String(value) })

const commands = {
  // Takes the lease if it is free at `now`, and says whether it did.
  async acquire (token, now, seconds) {
    try {
      await client.send(new UpdateItemCommand({
        TableName: table,
        Key: key('LOCK'),
        UpdateExpression: 'SET lease_token = :token, lease_expires_at = :until, worker = :mark',
        ConditionExpression: 'attribute_not_exists(lease_expires_at) OR lease_expires_at <= :now',
        ExpressionAttributeValues: {
          ':token': { S: token },
          ':now': number(now),
          ':until': number(Number(now) + Number(seconds)),
          ':mark': { S: 'node' }
        }
      }))
      return { acquired: true }
    } catch (error) {
      if (error.name !== 'ConditionalCheckFailedException') throw error
      return { acquired: false }
    }
  },

  // Writes the metadata and gives up the lease, together.
  async publish (token, s3Key, generatedAt, seconds) {
    await client.send(new TransactWriteItemsCommand({
      TransactItems: [
        {
          Put: {
            TableName: table,
            Item: {
              ...key('META'),
              s3_key: { S: s3Key },
              generated_at: number(generatedAt),
              revalidate_seconds: number(seconds),
              etag: { S: '"from-node"' },
              template: { S: 'v7' }
            }
          }
        },
        {
          Update: {
            TableName: table,
            Key: key('LOCK'),
            UpdateExpression: 'REMOVE lease_token, lease_expires_at',
            ConditionExpression: 'lease_token = :token',
            ExpressionAttributeValues: { ':token': { S: token } }
          }
        }
      ]
    }))
    return {}
  },

  // A whole lock row, as a service writes it that knows of no other attributes.
  async putLock (token, until) {
    await client.send(new PutItemCommand({
      TableName: table,
      Item: { ...key('LOCK'), lease_token: { S: token }, lease_expires_at: number(until) }
    }))
    return {}
  },

  async read (sk) {
    const { Item } = await client.send(new GetItemCommand({
      TableName: table, Key: key(sk), ConsistentRead: true
    }))
    return Item ?? null
  }
}

console.log(JSON.stringify(await commands[command](...rest)))
