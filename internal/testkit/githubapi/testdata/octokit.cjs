// Uses the double of GitHub as a GitHub App does with GitHub's own libraries, and prints what it saw as JSON.
"use strict";
const { createRequire } = require("node:module");
const packages = createRequire(process.env.SDKS + "/");

// load works for modules of both kinds.
const load = async (name) => import(packages.resolve(name));
const status = (call) => call.then((got) => got.status, (error) => error.status ?? String(error));

(async () => {
  const { Octokit } = await load("@octokit/rest");
  const { createAppAuth } = await load("@octokit/auth-app");
  const baseUrl = process.env.GITHUB;
  const authStrategy = createAppAuth;
  const auth = { appId: process.env.CLIENT_ID, privateKey: process.env.KEY };

  const app = new Octokit({ baseUrl, authStrategy, auth });
  const saw = { app: (await app.rest.apps.getAuthenticated()).data.slug };
  saw.installation = (await app.rest.apps.getRepoInstallation({ owner: "acme", repo: "api" })).data.id;

  const token = (more) => app.auth({ type: "installation", installationId: saw.installation, ...more });
  const narrow = new Octokit({ baseUrl, auth: (await token({ repositoryNames: ["api"], permissions: { issues: "write", contents: "write" } })).token });
  const repo = { owner: "acme", repo: "api" };
  saw.repositories = (await narrow.rest.apps.listReposAccessibleToInstallation()).data.repositories.map((one) => one.full_name);
  saw.repository = (await narrow.rest.repos.get(repo)).data.full_name;
  const made = (await narrow.rest.issues.create({ ...repo, title: "From Octokit", body: "text" })).data;
  await narrow.rest.issues.createComment({ ...repo, issue_number: made.number, body: "a comment" });
  saw.comments = (await narrow.rest.issues.listComments({ ...repo, issue_number: made.number })).data.map((one) => one.body);
  await narrow.rest.issues.update({ ...repo, issue_number: made.number, state: "closed" });
  saw.state = (await narrow.rest.issues.get({ ...repo, issue_number: made.number })).data.state;
  saw.titles = (await narrow.paginate(narrow.rest.issues.listForRepo, { ...repo, state: "all", per_page: 1 })).map((one) => one.title);
  const path = "docs/new.md";
  const put = await narrow.rest.repos.createOrUpdateFileContents({ ...repo, path, message: "Add", content: Buffer.from("one").toString("base64") });
  const sha = put.data.content.sha;
  await narrow.rest.repos.createOrUpdateFileContents({ ...repo, path, message: "Change", sha, content: Buffer.from("two").toString("base64") });
  saw.content = Buffer.from((await narrow.rest.repos.getContent({ ...repo, path })).data.content, "base64").toString();
  saw.folder = (await narrow.rest.repos.getContent({ ...repo, path: "docs" })).data.map((one) => one.path);
  saw.stale = await status(narrow.rest.repos.createOrUpdateFileContents({ ...repo, path, message: "Stale", sha, content: "" }));
  saw.viewer = (await narrow.graphql("{ viewer { login } }")).viewer.login;

  saw.pulls = await status(narrow.rest.pulls.list(repo));
  saw.other = await status(narrow.rest.repos.get({ owner: "acme", repo: "site" }));
  saw.unknown = await status(narrow.rest.repos.get({ owner: "acme", repo: "none" }));
  saw.user = await status(narrow.rest.users.getAuthenticated());
  saw.wider = await status(token({ permissions: { pull_requests: "write" } }));
  saw.foreign = await status(token({ repositoryNames: ["hidden"] }));
  saw.anybody = await status(new Octokit({ baseUrl }).rest.repos.get(repo));
  saw.ended = await status(narrow.rest.apps.revokeInstallationAccessToken());
  console.log(JSON.stringify(saw));
})().catch((error) => { console.error(error); process.exit(1); });
