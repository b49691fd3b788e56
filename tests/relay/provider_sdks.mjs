// What providers' own SDKs say of webhooks: node provider_sdks.mjs MODULES < [{provider, secret, headers, body}]
// The body is base64. Prints a list of booleans.

import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const require = createRequire(process.argv[2] + '/')
const load = name => import(pathToFileURL(require.resolve(name)))

const accepts = {
  async linear ({ secret, headers, body }) {
    const { LinearWebhookClient } = await load('@linear/sdk/webhooks')
    const { webhookTimestamp } = JSON.parse(body)
    try {
      return new LinearWebhookClient(secret).verify(body, headers['linear-signature'], webhookTimestamp)
    } catch {
      return false
    }
  },

  async shopify ({ secret, headers, body }) {
    await load('@shopify/shopify-api/adapters/node')
    const { shopifyApi, ApiVersion } = await load('@shopify/shopify-api')
    const shopify = shopifyApi({
      apiKey: 'key',
      apiSecretKey: secret,
      hostName: 'localhost',
      isEmbeddedApp: false,
      apiVersion: Object.values(ApiVersion).at(-1),
      logger: { log: () => {} }
    })
    const beside = {
      'x-shopify-topic': 'orders/create',
      'x-shopify-api-version': '2025-01',
      'x-shopify-shop-domain': 'shop.myshopify.com',
      'x-shopify-webhook-id': '1'
    }
    const rawRequest = { method: 'POST', url: '/', headers: { ...beside, ...headers } }
    const found = await shopify.webhooks.validate({ rawBody: body.toString(), rawRequest, rawResponse: {} })
    return found.valid
  }
}

let asked = ''
for await (const piece of process.stdin) asked += piece
const answers = []
for (const each of JSON.parse(asked)) {
  answers.push(await accepts[each.provider]({ ...each, body: Buffer.from(each.body, 'base64') }))
}
console.log(JSON.stringify(answers))
