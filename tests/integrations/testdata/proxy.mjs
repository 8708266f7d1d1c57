// Makes fetch use the proxy of the environment, as Node does by itself from version 24 on (NODE_USE_ENV_PROXY).
import { createRequire } from "node:module";
const { EnvHttpProxyAgent, setGlobalDispatcher } = createRequire(process.env.SDKS + "/")("undici");
if (process.env.HTTPS_PROXY) setGlobalDispatcher(new EnvHttpProxyAgent());
