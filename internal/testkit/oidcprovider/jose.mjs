// An independent reader and maker of our tokens and proofs: jose. It does what one JSON object on its standard input asks,
// and answers with one.
import {
  EmbeddedJWK, SignJWT, calculateJwkThumbprint, createLocalJWKSet, decodeProtectedHeader, exportJWK, generateKeyPair, jwtVerify,
} from 'jose';
import { createHash, randomUUID } from 'node:crypto';
import { text } from 'node:stream/consumers';
import { inflateSync } from 'node:zlib';

// verify reads an access token as a resource server does.
const verify = async ({ token, jwks, issuer, audience, alg }) => {
  const { payload, protectedHeader } = await jwtVerify(token, createLocalJWKSet(jwks), {
    issuer, audience, typ: 'at+jwt', algorithms: [alg], clockTolerance: 0,
    requiredClaims: ['iss', 'exp', 'aud', 'sub', 'client_id', 'iat', 'jti'],
  });
  const key = jwks.keys.find(({ kid }) => kid === protectedHeader.kid);
  return { claims: payload, kid: protectedHeader.kid, thumbprint: await calculateJwkThumbprint(key) };
};

// prove makes a DPoP proof with a new key.
const prove = async ({ alg, htm, htu, nonce, token }) => {
  const { publicKey, privateKey } = await generateKeyPair(alg, { extractable: true });
  const jwk = await exportJWK(publicKey);
  const ath = token && createHash('sha256').update(token).digest('base64url');
  const proof = await new SignJWT({ htm, htu, nonce, ath, jti: randomUUID() })
    .setProtectedHeader({ alg, typ: 'dpop+jwt', jwk }).setIssuedAt().sign(privateKey);
  return { proof, thumbprint: await calculateJwkThumbprint(jwk) };
};

// check reads a DPoP proof as a server does.
const check = async ({ proof }) => {
  const { payload } = await jwtVerify(proof, EmbeddedJWK, { typ: 'dpop+jwt', maxTokenAge: 60 });
  return { claims: payload, thumbprint: await calculateJwkThumbprint(decodeProtectedHeader(proof).jwk) };
};

// status reads the status list that a token names, and the token's bit in it.
const status = async ({ token, list, jwks, alg }) => {
  const keys = createLocalJWKSet(jwks);
  const { payload: { status: { status_list: { idx, uri } } } } = await jwtVerify(token, keys, { typ: 'at+jwt', algorithms: [alg] });
  const { payload } = await jwtVerify(list, keys, {
    subject: uri, typ: 'statuslist+jwt', algorithms: ['ES256'], clockTolerance: 0, requiredClaims: ['sub', 'iat', 'exp', 'ttl'],
  });
  const bits = inflateSync(Buffer.from(payload.status_list.lst, 'base64url'));
  return { claims: payload, status: (bits[idx >> 3] >> (idx & 7)) & 1 };
};

const { task, ...input } = JSON.parse(await text(process.stdin));
console.log(JSON.stringify(await { verify, prove, check, status }[task](input)));
