# Gunicorn settings for flask_app.py: each worker probes from its start, not from its first request on.
#
#     pip install . flask gunicorn
#     cd examples
#     gunicorn --config flask_gunicorn.py flask_app:app
#     curl -i localhost:8000/svc/node/health

workers = 2
preload_app = True


def post_worker_init(worker: object) -> None:
    from flask_app import node

    node.start()
