# docker build -t gpustreamlab . && docker run --gpus all -p 8888:8888 gpustreamlab   (without --gpus it simulates a device)
FROM python:3.13-slim
WORKDIR /lab
COPY . /src
RUN pip install --no-cache-dir '/src[notebook,cuda13,cupti,native]' && cp -r /src/notebooks /lab/notebooks
RUN useradd --create-home --uid 1000 lab && chown -R lab /lab
USER 1000
EXPOSE 8888
ENV PYTHONUNBUFFERED=1
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "--notebook-dir=/lab/notebooks"]
