const { packages, egress, run, content } = require("./lib.cjs");
const { WorkloadIdentityCredential } = packages("@azure/identity");
run(async () => {
  const headers = { "x-ms-version": "2023-11-03" };
  if (!egress) {
    const credential = new WorkloadIdentityCredential({ disableInstanceDiscovery: true, retryOptions: { maxRetries: 1, retryDelayInMs: 50 } });
    headers.authorization = "Bearer " + (await credential.getToken("https://storage.azure.com/.default")).token;
  }
  return content(await fetch(`${process.env.RESOURCES}/blobs/${process.env.TARGET}/a.txt`, { headers }));
});
