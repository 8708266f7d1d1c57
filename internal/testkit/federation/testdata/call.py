"""Calls S3 with boto3, as call.mjs does: python3 call.py s3 STEP..."""
import json, os, sys, time

import boto3
from botocore.config import Config

env = os.environ
config = Config(
    retries={'total_max_attempts': 1}, proxies={'https': env['HTTPS_PROXY']} if env.get('HTTPS_PROXY') else None,
    s3={'addressing_style': 'path' if env.get('CALL_PATH_STYLE') else 'virtual'},
)
static = {'aws_access_key_id': 'test', 'aws_secret_access_key': 'test'} if env.get('CALL_STATIC') else {}
s3 = boto3.client('s3', region_name=env['AWS_REGION'], endpoint_url=env.get('CALL_URL'), config=config, verify=env.get('AWS_CA_BUNDLE'), **static)
for step in sys.argv[2:]:
    if step == 'pause':
        sys.stdin.readline()
    elif step.startswith('wait='):
        time.sleep(float(step[5:]))
    else:
        try:
            said = {'ok': True, 'text': s3.get_object(Bucket=env['CALL_BUCKET'], Key=env['CALL_KEY'])['Body'].read().decode()}
        except Exception as e:
            answer = getattr(e, 'response', {})
            said = {'ok': False, 'status': answer.get('ResponseMetadata', {}).get('HTTPStatusCode', 0), 'code': answer.get('Error', {}).get('Code', type(e).__name__), 'text': str(e)}
        print(json.dumps(said), flush=True)
