// What the clients of the suite share: where the packages are, and how a result is printed.
"use strict";
const { createRequire } = require("node:module");

exports.packages = createRequire(process.env.SDKS + "/");
exports.egress = process.env.WAY === "egress";

// run prints "ok" with what the call returns, or "error" with the status or the name of the error.
exports.run = async (call) => {
  try {
    console.log("ok " + (await call()));
  } catch (error) {
    let why = error;
    while (why.cause instanceof Error && !why.status && !why.$metadata?.httpStatusCode && !why.response?.status) why = why.cause;
    console.log("error " + (why.status ?? why.$metadata?.httpStatusCode ?? why.response?.status ?? why.statusCode ?? why.code ?? why.name));
    if (process.env.DEBUG) console.error(error);
  }
};

// content returns the text of a response, or throws its status.
exports.content = async (response) => {
  const text = await response.text();
  if (!response.ok) throw Object.assign(new Error(text.slice(0, 200)), { status: response.status });
  return text;
};
