const { packages, egress, run } = require("./lib.cjs");
const { S3Client, GetObjectCommand } = packages("@aws-sdk/client-s3");
const options = { region: "eu-central-1", endpoint: process.env.RESOURCES, forcePathStyle: true, maxAttempts: 2 };
if (egress) {
  const { NodeHttpHandler } = packages("@smithy/node-http-handler");
  const { HttpsProxyAgent } = packages("https-proxy-agent");
  options.credentials = { accessKeyId: "unused", secretAccessKey: "unused" };
  options.requestHandler = new NodeHttpHandler({ httpsAgent: new HttpsProxyAgent(process.env.HTTPS_PROXY) });
} else {
  options.credentials = packages("@aws-sdk/credential-providers").fromNodeProviderChain();
}
run(async () => (await new S3Client(options).send(new GetObjectCommand({ Bucket: process.env.TARGET, Key: "a.txt" }))).Body.transformToString());
