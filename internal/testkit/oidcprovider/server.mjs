// A real OpenID Connect provider for the tests: oidc-provider, with people in it who need no password. It listens on a
// free port of loopback, prints its issuer, and ends when its standard input does, so that it cannot outlive a test.
import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';

import Provider from 'oidc-provider';

const people = {
  alice: { name: 'Alice Archer', groups: ['oncall', 'engineers'] },
  bob: { name: 'Bob Baker', groups: ['oncall'] },
  carol: { name: 'Carol Cook', groups: ['admins'] },
  dave: { name: 'Dave Draper', groups: ['auditors'] },
  erin: { name: 'Erin Eng' },
};

const client = (id) => ({
  client_id: id,
  application_type: 'native', // any port of loopback
  token_endpoint_auth_method: 'none',
  redirect_uris: ['http://127.0.0.1/callback', 'http://localhost/callback'],
  grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
  response_types: ['code'],
});

const signingKey = () => ({
  ...generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' }), use: 'sig', alg: 'RS256',
});

const configuration = {
  clients: [client('brevet'), client('brevet-brief')],
  jwks: { keys: [signingKey()] },
  cookies: { keys: ['for tests only'] },
  scopes: ['openid', 'profile', 'offline_access'],
  claims: { openid: ['sub'], profile: ['name', 'preferred_username', 'groups'] },
  conformIdTokenClaims: false, // the claims of the scopes are in the ID token
  features: { devInteractions: { enabled: true }, deviceFlow: { enabled: true }, revocation: { enabled: true } },
  pkce: { required: () => true },
  issueRefreshToken: () => true,
  // The tokens of one client end at once, for tests of what happens then.
  ttl: {
    IdToken: (_ctx, _token, { clientId }) => (clientId === 'brevet-brief' ? 20 : 600),
    AccessToken: 600, DeviceCode: 120, Grant: 3600, Interaction: 120, RefreshToken: 3600, Session: 3600,
  },
  async findAccount(_ctx, username) {
    if (!Object.hasOwn(people, username)) return undefined;
    return {
      accountId: username,
      claims: async () => ({ sub: username, preferred_username: username, ...people[username] }),
    };
  },
};

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  server.on('request', new Provider(issuer, configuration).callback());
  process.stdout.write(`${issuer}\n`);
});
process.stdin.resume().on('end', () => process.exit(0));
