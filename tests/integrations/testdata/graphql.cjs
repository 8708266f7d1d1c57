const { packages, egress, run } = require("./lib.cjs");
const fs = require("node:fs");
const { graphql } = packages("@octokit/graphql");
const headers = egress ? {} : { authorization: "bearer " + fs.readFileSync(process.env.TOKEN_FILE, "utf8") };
const query = graphql.defaults({ baseUrl: process.env.GITHUB, headers });
run(async () => {
  const answer = await query(`query($name: String!) { repository(owner: "acme", name: $name) { issues(first: 5) { nodes { title } } } }`, { name: process.env.TARGET });
  return answer.repository.issues.nodes.map((issue) => issue.title);
});
