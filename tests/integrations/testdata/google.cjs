const { packages, egress, run } = require("./lib.cjs");
const { GoogleAuth, OAuth2Client } = packages("google-auth-library");
run(async () => {
  let client;
  if (egress) {
    client = new OAuth2Client();
    client.setCredentials({ access_token: "unused", expiry_date: Date.now() + 3600e3 });
  } else {
    client = await new GoogleAuth({ scopes: "https://www.googleapis.com/auth/cloud-platform" }).getClient();
  }
  const url = `${process.env.RESOURCES}/storage/v1/b/${process.env.TARGET}/o/a.txt?alt=media`;
  return (await client.request({ url, responseType: "text", retry: false })).data;
});
