# GetObject with boto3.
import os
import boto3
from botocore.client import Config
from botocore.exceptions import ClientError, BotoCoreError

keys = {"aws_access_key_id": "unused", "aws_secret_access_key": "unused"} if os.environ.get("WAY") == "egress" else {}
s3 = boto3.client("s3", region_name="eu-central-1", endpoint_url=os.environ["RESOURCES"], **keys,
                  config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}, connect_timeout=20, read_timeout=20))
try:
    print("ok", s3.get_object(Bucket=os.environ["TARGET"], Key="a.txt")["Body"].read().decode())
except ClientError as error:
    print("error", error.response["ResponseMetadata"]["HTTPStatusCode"])
except BotoCoreError as error:
    print("error", type(error).__name__)
