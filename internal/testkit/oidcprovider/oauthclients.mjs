// OAuth clients that share nothing with ours, oauth4webapi and openid-client, as their users call them. One JSON object on standard input
// says which one, against which server and by which proof; the answer is what each step returned.
import * as web from 'oauth4webapi';
import * as openid from 'openid-client';
import { Agent, fetch as undiciFetch } from 'undici';
import { text } from 'node:stream/consumers';

const input = JSON.parse(await text(process.stdin));
const { library, issuer, server, ca, cert, key, clientID, assertion, assertionType, alg, scope, actorToken } = input;

// An SVID has no DNS name to check: the CA is the trust domain's, and the test has made the server.
const dispatcher = new Agent({ connect: { ca, cert, key, checkServerIdentity: () => undefined } });
const customFetch = (url, options) => undiciFetch(String(url).replace(issuer, server), { ...options, dispatcher });

// authenticate is the client authentication of draft-ietf-oauth-spiffe-client-auth and RFC 7523, as both libraries let one write it.
const authenticate = (as, client, body) => {
  body.set('client_assertion_type', assertionType);
  body.set('client_assertion', assertion);
};
const form = (params) => new URLSearchParams(params);
const exchange = 'urn:ietf:params:oauth:grant-type:token-exchange';
const handDown = (token) => form({
  subject_token: token, subject_token_type: 'urn:ietf:params:oauth:token-type:access_token',
  actor_token: actorToken, actor_token_type: 'urn:ietf:params:oauth:token-type:jwt',
});
const refused = (err) => ({ error: err.error, description: err.error_description ?? err.cause?.error_description, status: err.status });

const withOAuth4webapi = async () => {
  const http = { [web.customFetch]: customFetch };
  const as = await web.processDiscoveryResponse(new URL(issuer), await web.discoveryRequest(new URL(issuer), { algorithm: 'oauth2', ...http }));
  const client = { client_id: clientID };
  const auth = assertion ? authenticate : web.TlsClientAuth();
  const proof = alg && { DPoP: web.DPoP(client, await web.generateKeyPair(alg)) };
  const granted = async () => web.processClientCredentialsResponse(as, client,
    await web.clientCredentialsGrantRequest(as, client, auth, form({ scope }), { ...http, ...proof }));
  const token = await granted().catch((err) => {
    if (!proof || !web.isDPoPNonceError(err)) throw err;
    return granted();
  });
  const exchanged = proof ? undefined : await web.processGenericTokenEndpointResponse(as, client,
    await web.genericTokenEndpointRequest(as, client, auth, exchange, handDown(token.access_token), http));
  const introspected = await web.processIntrospectionResponse(as, client, await web.introspectionRequest(as, client, auth, token.access_token, http));
  await web.processRevocationResponse(await web.revocationRequest(as, client, auth, token.access_token, http));
  const after = await web.processIntrospectionResponse(as, client, await web.introspectionRequest(as, client, auth, token.access_token, http));
  const failing = async (wrong, params) => web.processClientCredentialsResponse(as, client,
    await web.clientCredentialsGrantRequest(as, client, wrong, form(params), http)).then(() => undefined, refused);
  return {
    token, exchanged, introspected, after,
    unknownScope: await failing(auth, { scope: 'no.such.scope' }),
    noClient: await failing((_, __, body) => { body.set('client_assertion_type', 'urn:x'); body.set('client_assertion', 'x'); }, { scope }),
  };
};

const withOpenIDClient = async () => {
  const auth = assertion ? authenticate : openid.TlsClientAuth();
  const connect = (how) => openid.discovery(new URL(issuer), clientID, undefined, how, { algorithm: 'oauth2', [openid.customFetch]: customFetch });
  const config = await connect(auth);
  const proof = alg && { DPoP: openid.getDPoPHandle(config, await openid.randomDPoPKeyPair(alg)) };
  const token = await openid.clientCredentialsGrant(config, { scope }, proof);
  const exchanged = proof ? undefined : await openid.genericGrantRequest(config, exchange, handDown(token.access_token));
  const introspected = await openid.tokenIntrospection(config, token.access_token);
  await openid.tokenRevocation(config, token.access_token);
  const after = await openid.tokenIntrospection(config, token.access_token);
  const nobody = await connect((_, __, body) => { body.set('client_assertion_type', 'urn:x'); body.set('client_assertion', 'x'); });
  return {
    token, exchanged, introspected, after,
    unknownScope: await openid.clientCredentialsGrant(config, { scope: 'no.such.scope' }).then(() => undefined, refused),
    noClient: await openid.clientCredentialsGrant(nobody, { scope }).then(() => undefined, refused),
  };
};

const answer = await { 'oauth4webapi': withOAuth4webapi, 'openid-client': withOpenIDClient }[library]();
await dispatcher.close();
process.stdout.write(JSON.stringify(answer));
