// Extracts from GitHub's OpenAPI description the operations that the double in the folder above has, with everything that they
// refer to, and writes them to github.json. Run it after a change of the list below or of the package's version:
//   npm ci --ignore-scripts && npm run extract
import {readFileSync, writeFileSync} from 'node:fs'

const operations = [
  'meta/root', 'meta/get', 'rate-limit/get', 'users/get-authenticated',
  'apps/get-authenticated', 'apps/list-installations', 'apps/get-installation', 'apps/get-repo-installation',
  'apps/create-installation-access-token', 'apps/revoke-installation-access-token', 'apps/list-repos-accessible-to-installation',
  'repos/get', 'repos/get-content', 'repos/create-or-update-file-contents',
  'issues/list-for-repo', 'issues/get', 'issues/create', 'issues/update', 'issues/list-comments', 'issues/create-comment',
  'pulls/list',
]

const description = JSON.parse(readFileSync('node_modules/@octokit/openapi/generated/api.github.com.json'))
const out = {
  openapi: description.openapi,
  info: {title: description.info.title, version: description.info.version, license: description.info.license},
  'x-origin': 'The operations that a test double needs, from the npm package @octokit/openapi, generated/api.github.com.json. ' +
    'Copyright (c) GitHub and contributors, MIT License: see LICENSE in this folder.',
  paths: {},
  components: {},
}

// Prose is most of the description, and validates nothing.
const prose = new Set(['summary', 'externalDocs', 'tags', 'deprecationDate', 'removalDate'])

// trim returns a copy without prose. Names of properties are not keywords, so what they name is kept.
function trim(value, named = false) {
  if (Array.isArray(value)) return value.map((one) => trim(one))
  if (value === null || typeof value !== 'object') return value
  const kept = {}
  for (const [key, one] of Object.entries(value)) {
    if (!named && (prose.has(key) || key.startsWith('x-'))) continue
    if (!named && key === 'description') {
      if (value.content === undefined && value.headers === undefined && Object.keys(value).length > 1) continue
      kept[key] = '' // an answer has to have one
      continue
    }
    if (!named && key === 'example') continue
    if (!named && key === 'examples') {
      const first = Object.entries(one).slice(0, 1) // one example of each answer is enough
      kept[key] = Array.isArray(one) ? [] : Object.fromEntries(first)
      continue
    }
    kept[key] = trim(one, !named && ['properties', 'responses', 'content', 'headers', 'patternProperties'].includes(key))
  }
  return kept
}

// follow adds everything that a part refers to.
function follow(part) {
  if (part === null || typeof part !== 'object') return
  if (typeof part.$ref === 'string') {
    const [, , group, name] = part.$ref.split('/')
    if (out.components[group]?.[name] === undefined) {
      const target = description.components[group][name]
      const copy = group === 'examples' ? {value: target.value} : trim(target)
      out.components[group] = {...out.components[group], [name]: copy}
      follow(copy)
    }
  }
  for (const one of Object.values(part)) follow(one)
}

const missing = new Set(operations)
for (const [path, item] of Object.entries(description.paths)) {
  for (const [method, operation] of Object.entries(item)) {
    if (!missing.delete(operation.operationId)) continue
    const copy = trim(operation)
    copy.responses = Object.fromEntries(Object.entries(copy.responses).map(([code, one]) => [code, one.$ref ? one : {description: '', ...one}]))
    for (const [code, one] of Object.entries(copy.responses)) {
      const schema = one.content?.['application/json']?.schema
      if (code >= '400' && schema?.oneOf) { // GitHub's kinds of errors overlap, so an error can be of several
        schema.anyOf = schema.oneOf
        delete schema.oneOf
      }
    }
    follow(copy)
    out.paths[path] = {...out.paths[path], [method]: copy}
  }
}
if (missing.size > 0) throw new Error('GitHub has no operations ' + [...missing].join(', '))
writeFileSync('github.json', JSON.stringify(out, null, 1) + '\n')
