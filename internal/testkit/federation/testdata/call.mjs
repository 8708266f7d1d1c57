// Calls a system with its official SDK: node call.mjs CLIENT STEP... A step is "read", "pause" (waits for a line on standard input)
// or "wait=SECONDS". Each read prints one line of JSON. What a client needs and no environment variable of its own says is in
// CALL_... variables. With CALL_STATIC the client uses a static key, which is worth nothing, as in a sandbox behind a gateway.
import {createInterface} from 'node:readline'
import {createRequire} from 'node:module'

const env = process.env
const packages = createRequire(env.SDKS + '/')
const [client, ...steps] = process.argv.slice(2)
const proxy = env.HTTPS_PROXY
const input = createInterface({input: process.stdin})[Symbol.asyncIterator]()

if (proxy) {
  const {setGlobalDispatcher, EnvHttpProxyAgent} = packages('undici')
  setGlobalDispatcher(new EnvHttpProxyAgent({noProxy: ''}))
}

async function aws(extra) {
  const config = {region: env.AWS_REGION, maxAttempts: Number(env.CALL_ATTEMPTS ?? 1), ...extra}
  if (env.CALL_STATIC) config.credentials = {accessKeyId: 'test', secretAccessKey: 'test'}
  if (proxy) {
    const {HttpsProxyAgent} = packages('https-proxy-agent')
    const {NodeHttpHandler} = packages('@smithy/node-http-handler')
    config.requestHandler = new NodeHttpHandler({httpsAgent: new HttpsProxyAgent(proxy)})
    if (!config.credentials) {
      // The provider calls with a client of its own, which does not know the proxy.
      const {fromTokenFile} = packages('@aws-sdk/credential-providers')
      config.credentials = fromTokenFile({clientConfig: {region: env.AWS_REGION, requestHandler: config.requestHandler, maxAttempts: config.maxAttempts}})
    }
  }
  return config
}

const plain = async (response) => {
  const text = await response.text()
  if (!response.ok) throw Object.assign(new Error(text), {status: response.status})
  return text
}

const make = {
  async s3() {
    const {S3Client, GetObjectCommand} = packages('@aws-sdk/client-s3')
    const s3 = new S3Client(await aws({forcePathStyle: !!env.CALL_PATH_STYLE, ...(env.CALL_URL && {endpoint: env.CALL_URL})}))
    return async () => (await s3.send(new GetObjectCommand({Bucket: env.CALL_BUCKET, Key: env.CALL_KEY}))).Body.transformToString()
  },
  async s3all() {
    const {S3Client, GetObjectCommand, PutObjectCommand, ListObjectsV2Command} = packages('@aws-sdk/client-s3')
    const s3 = new S3Client(await aws({forcePathStyle: !!env.CALL_PATH_STYLE, ...(env.CALL_URL && {endpoint: env.CALL_URL})}))
    return async () => {
      const key = env.CALL_KEY + ' a+b=ü'
      await s3.send(new PutObjectCommand({Bucket: env.CALL_BUCKET, Key: key, Body: 'put', ContentType: 'text/plain'}))
      const {Contents} = await s3.send(new ListObjectsV2Command({Bucket: env.CALL_BUCKET, Prefix: env.CALL_KEY}))
      const text = await (await s3.send(new GetObjectCommand({Bucket: env.CALL_BUCKET, Key: key}))).Body.transformToString()
      return text + ' ' + Contents.length
    }
  },
  async sts() {
    const {STSClient, GetCallerIdentityCommand} = packages('@aws-sdk/client-sts')
    const sts = new STSClient(await aws(env.CALL_URL ? {endpoint: env.CALL_URL} : {}))
    return async () => (await sts.send(new GetCallerIdentityCommand({}))).Arn
  },
  async google() {
    const {GoogleAuth, OAuth2Client} = packages('google-auth-library')
    let client
    if (env.CALL_STATIC) {
      client = new OAuth2Client()
      client.setCredentials({access_token: 'test', expiry_date: Date.now() + 3600e3})
    } else {
      client = await new GoogleAuth({scopes: ['https://www.googleapis.com/auth/cloud-platform']}).getClient()
    }
    return async () => (await client.request({url: `${env.CALL_URL}/storage/v1/b/${env.CALL_BUCKET}/o/${env.CALL_KEY}?alt=media`, responseType: 'text', retry: false})).data
  },
  async azure() {
    let token = async () => ({token: 'test'})
    if (!env.CALL_STATIC) {
      const {WorkloadIdentityCredential} = packages('@azure/identity')
      const credential = new WorkloadIdentityCredential({disableInstanceDiscovery: !!env.CALL_PATH_STYLE, retryOptions: {maxRetries: 0}})
      token = () => credential.getToken('https://storage.azure.com/.default')
    }
    return async () => plain(await fetch(`${env.CALL_URL}/${env.CALL_BUCKET}/${env.CALL_KEY}`, {
      headers: {authorization: 'Bearer ' + (await token()).token, 'x-ms-version': '2023-11-03'},
    }))
  },
  async anthropic() {
    const {default: Anthropic} = packages('@anthropic-ai/sdk')
    const api = new Anthropic({maxRetries: 0, ...(env.CALL_URL && {baseURL: env.CALL_URL}), ...(env.CALL_STATIC && {authToken: 'test'})})
    return async () => (await api.messages.create({model: 'claude-site', max_tokens: 10, messages: [{role: 'user', content: 'hi'}]})).content[0].text
  },
  async openai() {
    const {default: OpenAI} = packages('openai')
    const {k8sServiceAccountTokenProvider} = packages('openai/auth/index')
    // The SDK has no setting for the address of the token endpoint.
    const to = (url, init) => fetch(env.CALL_AUTH_URL ? String(url).replace('https://auth.openai.com', env.CALL_AUTH_URL) : url, init)
    const api = new OpenAI({maxRetries: 0, fetch: to, ...(env.CALL_URL && {baseURL: env.CALL_URL + '/v1'}), ...(env.CALL_STATIC ? {apiKey: 'test'} : {workloadIdentity: {
      identityProviderId: env.CALL_PROVIDER, serviceAccountId: env.CALL_ACCOUNT, provider: k8sServiceAccountTokenProvider(env.CALL_TOKEN_FILE),
    }})})
    return async () => (await api.responses.create({model: 'gpt-5', input: 'hi'})).output_text
  },
}

const causes = (e) => e ? [e.message, ...causes(e.cause)] : []
const read = await make[client]()
for (const step of steps) {
  if (step === 'pause') await input.next()
  else if (step.startsWith('wait=')) await new Promise((done) => setTimeout(done, 1000 * step.slice(5)))
  else {
    try {
      console.log(JSON.stringify({ok: true, text: await read()}))
    } catch (e) {
      const status = e.$metadata?.httpStatusCode ?? e.statusCode ?? e.status ?? e.response?.status
      console.log(JSON.stringify({ok: false, status: Number(status) || 0, code: String(e.name), text: causes(e).join(': ').slice(0, 2000)}))
    }
  }
}
process.exit(0)
