const { packages, egress, run } = require("./lib.cjs");
const fs = require("node:fs");
const { Octokit } = packages("@octokit/rest");
const auth = egress ? undefined : fs.readFileSync(process.env.TOKEN_FILE, "utf8");
const log = { debug() {}, info() {}, warn() {}, error() {} };
const octokit = new Octokit({ auth, baseUrl: process.env.GITHUB, log, retry: { enabled: false } });
run(async () => (await octokit.rest.issues.listForRepo({ owner: "acme", repo: process.env.TARGET })).data.map((issue) => issue.title));
